"""Checks of URLs, for all places where one is given. Pure."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from urllib.parse import urlsplit

EXAMPLE = "http://127.0.0.1:8080/"


def wrong_with(url: str) -> tuple[str, str] | None:
    """What is wrong with a URL, and a remedy; None if it is valid."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"{url!r} is not a URL: {error}", f"write for example {EXAMPLE}"
    if parts.scheme not in ("http", "https") or not host:
        # Users often forget the scheme. A path alone also lacks a host.
        forgotten = url and "://" not in url and not url.startswith("/")
        remedy = f"write http://{url}" if forgotten else f"write for example {EXAMPLE}"
        return f"{url!r} is not an http or https URL", remedy
    if "$" in parts.netloc:
        return f"{url!r} has a variable in its host", "use variables only after the host"
    return None


def ascii_host(host: str) -> str:
    """A host as it is looked up: in ASCII, with an IPv6 address in brackets. ValueError if it cannot be one.

    Names in other scripts are converted as browsers do (UTS 46, non-transitional): `bücher.example` is
    `xn--bcher-kva.example`.
    """
    if ":" in host:
        return f"[{ipaddress.IPv6Address(host)}]"
    labels = unicodedata.normalize("NFKC", host).lower().replace("。", ".").split(".")
    name = ".".join(label if label.isascii() else f"xn--{label.encode('punycode').decode()}" for label in labels)
    if not re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?", name):
        raise ValueError(f"{host!r} is not a host")
    return name
