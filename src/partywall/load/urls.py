"""What makes a URL unfit to be asked, wherever it is given. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit

EXAMPLE = "http://127.0.0.1:8080/"


def wrong_with(url: str) -> tuple[str, str] | None:
    """What is wrong with it, and what to write; None if nothing is."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"{url!r} is not a URL: {error}", f"write for example {EXAMPLE}"
    if parts.scheme not in ("http", "https") or not host:
        # The scheme is what one forgets; a path alone lacks a host as well.
        forgotten = url and "://" not in url and not url.startswith("/")
        remedy = f"write http://{url}" if forgotten else f"write for example {EXAMPLE}"
        return f"{url!r} is not an http or https URL", remedy
    if "$" in parts.netloc:
        return f"{url!r} has a variable in its host", "variables may stand after the host"
    return None
