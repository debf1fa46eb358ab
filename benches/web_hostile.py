"""Attacks on the web page, each with what must not happen: nothing executes, nothing is served, nothing hangs.

Records whose names, notes, messages, findings and files contain scripts, markup, bidirectional text and megabytes are
opened in a real browser. Requests use other names (DNS rebinding), other origins (CSRF), paths out of the folder,
guessed tokens and broken HTTP. Slow clients and a thousand connections are held while the page must still answer.

--quick: without the browser, and 300 connections.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator

from common import until
from frame import Options, Outcome, bench
from web_site import Site, browser, site

SCRIPT = "<script>window.executed=1</script><img src=x onerror=window.executed=1><svg onload=window.executed=1>"
TEXTS = {
    "script": SCRIPT,
    "attribute": "\" onmouseover=window.executed=1 autofocus onfocus=window.executed=1 x='",
    "template": "{{ 7*7 }}{% for x in ().__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}${7*7}",
    "url": "javascript:window.executed=1",
    "bidi": "\u202egnp.exe\u202c \u2066\u2067 abc \u200f",
    "control": "a\x00b\x1b[2J\x07\r\nset-cookie: a=b\r\n\r\n<b>",
    "htmx": "<div hx-get='/published.zip' hx-trigger='load' hx-on::load='window.executed=1'></div>",
    "entity": "&lt;script&gt;&#x3c;script>",
    "long": "A" * (1 << 20),
    "combining": "Z\u0351\u036b" * 50_000,
    "sse": "x\n\nevent: status\ndata: <script>window.executed=1</script>\n\n",
}
SECRET = "content of another folder"  # noqa: S105 - it is none
LAUGHS = b"a: &a [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    f"{after}: &{after} [{', '.join([f'*{name}'] * 9)}]\n".encode()
    for name, after in zip("abcdefgh", "bcdefghi", strict=True)
)
"""A document that becomes nine times larger with each line."""
Attack = tuple[str, Callable[[], str]]


def records(where: Site) -> None:
    """Records that hold hostile text wherever text can be."""
    for number, (name, text) in enumerate(TEXTS.items()):
        path = where.root / f"hostile-{name}"
        path.mkdir()
        (path / "load.json").write_text("{}")
        events = [
            {"at": 1.0, "event": "started", "pid": 1, "start_ticks": 1, "path": text},
            {"at": 2.0, "event": "doing", "text": text},
            {"at": 2.0, "event": "note", "text": text, "is_warning": True},
            {"at": 2.0, "event": "broken", "text": text},
            {"at": 3.0, "event": "second", "users": text, "rate": 1, "errors": text, "doubts": {text: text}},
            {"at": 3.0, "event": "second", "users": 1, "rate": 1, "doubts": {text: text}},
            {"at": 3.0, "event": "report", "of": "migration", "move": text},
        ]  # fmt: skip
        (path / "journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        (path / "findings.json").write_text(json.dumps({"headline": text, "scenario": text}))
        (path / "report.html").write_text(
            f"<title>x</title>{SCRIPT}<script>parent.executed=1;top.executed=1</script>{text[:9999]}"
        )
        with contextlib.suppress(OSError, ValueError):
            (path / text.replace("/", "_")[:200]).write_text("x")
        notes = where.root / ".partywall" / "notes"
        (notes / f"{path.name}.json").write_text(json.dumps({"note": text, "tags": [text, str(number)]}))
    named = where.root / "<img src=x onerror=window.executed=1>"
    named.mkdir()
    (named / "load.json").write_text("{}")
    odd = where.root / "odd"
    odd.mkdir()
    (odd / "load.json").write_text("{}")
    os.mkfifo(odd / "journal.jsonl")
    os.mkfifo(odd / "findings.json")
    os.mkfifo(odd / "report.html")
    (odd / "link.txt").symlink_to(where.root.parent / "secret")
    (odd / "folder").symlink_to(where.root.parent)
    (where.root / "linked").symlink_to(where.root.parent)
    deep = where.root / "deep"
    deep.mkdir()
    (deep / "load.json").write_text("{}")
    (deep / "journal.jsonl").write_bytes(
        b"[" * 100_000 + b"\n" + b'{"event":' + b"[" * 100_000 + b"\n\xff\xfe\n" + b"x" * (3 << 20)
    )
    (where.root.parent / "secret").write_text(SECRET)


def raw(where: Site, data: bytes, wait_s: float = 5.0) -> bytes:
    """Sends bytes and returns the answer's beginning."""
    with socket.create_connection(("127.0.0.1", where.port), timeout=wait_s) as connection:
        connection.sendall(data)
        with contextlib.suppress(OSError):
            return connection.recv(65536)
    return b""


def status_is(
    where: Site,
    wanted: tuple[int, ...],
    method: str = "GET",
    path: str = "/",
    body: bytes | None = None,
    **headers: str,
) -> Callable[[], str]:
    """An attack that must be answered with one of these statuses, and never with the secret."""

    def carry_out() -> str:
        status, _, text = where.request(method, path, body, **headers)
        if SECRET in text:
            return "it served the secret"
        return "" if status in wanted else f"it answered {status}: {text[:100]!r}"

    return carry_out


HOSTS = """
evil.test|evil.test:{port}|127.0.0.1|127.0.0.1:1||127.0.0.1:{port}.evil.test|127.0.0.1.evil.test:{port}|0.0.0.0:{port}
2130706433:{port}"""
ORIGINS = """
null|http://evil.test|http://127.0.0.1:{next}|https://127.0.0.1:{port}|http://127.0.0.1:{port}@evil.test
http://127.0.0.1:{port}.evil.test|file://|"""
PATHS = """
/records/odd/files/../../secret|/records/odd/files/..%2f..%2fsecret|/records/odd/files/%2e%2e/%2e%2e/secret
/records/odd/files/link.txt|/records/odd/files/folder/secret|/records/linked/files/secret|/records/../secret
/records/..%2f/files/secret|/records/odd/files//etc/passwd|/records/odd/files/%00
/records/.partywall/files/session-secret|/records/.partywall%2fjobs/files/x|/assets/../app.py|/assets/..%2f..%2fapp.py
/assets/%2e%2e/app.py|/.partywall/session-secret|/records/odd/files/report.html|/records/%2e%2e/files/secret"""
RAW = """
GET / HTTP/0.9

GET /

GET / HTTP/1.1

POST /jobs HTTP/1.1
Host: 127.0.0.1:{port}
Content-Length: -1

POST / HTTP/1.1
Host: 127.0.0.1:{port}
Content-Length: 5
Transfer-Encoding: chunked
#
0
#
GET /published.zip HTTP/1.1

GET http://evil.test/ HTTP/1.1
Host: 127.0.0.1:{port}

CONNECT evil.test:80 HTTP/1.1
Host: 127.0.0.1:{port}

GET / HTTP/1.1
Host: 127.0.0.1:{port}
X: a
 b\0c"""
"""Broken HTTP. A line with # is empty."""
DOCUMENTS = (
    b"[" * 200_000, b"a: &a [*a, *a]\n" * 100, LAUGHS, b"!!python/object/apply:os.system ['id']", b"\x00\x01\x02",
    b"partywall: 1\n" + b"- " * 50_000,
)  # fmt: skip


def listed(text: str, port: int) -> list[str]:
    return text[1:].format(port=port, next=port + 1).replace("\n", "|").split("|")


def requests(where: Site) -> Iterator[Attack]:
    """Single requests."""
    port = where.port
    form = {"content_type": "application/x-www-form-urlencoded"}
    own, order = {"origin": where.origin} | form, ("POST", "/jobs", b"kind=run&shipped=demo")
    foreign, made_up = {"sec_fetch_site": "cross-site"}, b"&key=0123456789abcdef-0123456789abcdef01234567"
    two_hosts = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: evil.test\r\n\r\n".encode()
    for host in listed(HOSTS, port):
        yield f"host {host!r}", status_is(where, (400, 421), host=host)
    yield "two hosts", lambda: _starts(raw(where, two_hosts), b"HTTP/1.1 4")
    for origin in listed(ORIGINS, port):
        yield f"change from origin {origin!r}", status_is(where, (403,), *order, origin=origin, **form)
    yield "change without an origin", status_is(where, (403,), *order, **form)
    yield "change without a key", status_is(where, (403,), *order, **own)
    yield "change with a made-up key", status_is(where, (403,), *order[:2], order[2] + made_up, **own)
    yield "form of another type", status_is(where, (415,), *order[:2], b"{}", **own | {"content_type": "text/plain"})
    image = status_is(where, (403,), path="/published.zip", sec_fetch_mode="no-cors", **foreign)
    yield "image of another site", image
    frame = status_is(where, (403,), path="/", sec_fetch_mode="navigate", sec_fetch_dest="iframe", **foreign)
    yield "frame of another site", frame
    for path in listed(PATHS, port):
        yield f"path {path}", status_is(where, (400, 403, 404, 405, 307), path=path)
    for kind in ("run", "study", "migration"):
        for name in (where.root.parent / "secret", "../../../etc/passwd", "/etc/passwd"):
            yield f"document {kind} {name}", status_is(where, (404,), path=f"/start?kind={kind}&shipped={name}")
    real = where.cookie.partition("=")[2]
    for cookie in ("", "x", "full.x.y", "full..", "look.a." + "0" * 64, f"{real}x", "a" * 4000):
        yield f"cookie {cookie[:20]!r}", status_is(where, (401,), cookie=f"partywall_{port}={cookie}")
    yield "cookie given twice", status_is(where, (401,), cookie=f"{where.cookie}; {where.cookie}")
    for token in ("Bearer ", "Bearer x", "Basic YTpi", "bearer " + "0" * 64):
        yield f"token {token[:10]!r}", status_is(where, (401,), authorization=token, cookie="")
    yield "2,000 guesses of the launch token", lambda: _guesses(where)
    yield "target of 9,000 bytes", status_is(where, (400, 414), path="/?q=" + "x" * 9000)
    large = b"GET / HTTP/1.1\r\nx: " + b"x" * 100_000 + b"\r\n\r\n"
    yield "header of 100,000 bytes", lambda: _starts(raw(where, large), b"HTTP/1.1 4", b"")
    yield "body of 2 MiB", status_is(where, (413,), "POST", "/check", b"x" * (2 << 20), origin=where.origin)
    fields = b"&".join(b"a%d=1" % n for n in range(10_000))
    yield "form of 10,000 fields", status_is(where, (400,), "POST", "/jobs", fields, **own)
    yield "form that is not UTF-8", status_is(where, (403,), "POST", "/jobs", b"kind=\xff\xfe&key=\xff", **own)
    for text in DOCUMENTS:
        yield f"document {text[:24]!r}", lambda text=text: _quick(where, text)
    named = b"partywall: 1\nname: x\nvictims:\n  a:\n    load: /etc/shadow\n"
    yield "document that names a file", lambda: _refuses(where, named)
    broken = [each.replace("#", "").replace("\n", "\r\n") for each in RAW[1:].format(port=port).split("\n\n")]
    for data in (*(f"{each}\r\n\r\n".encode() for each in broken), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"):
        yield f"HTTP {data[:30]!r}", lambda data=data: _no_page(raw(where, data))
    socket_key = {"sec_websocket_version": "13", "sec_websocket_key": "dGhlIHNhbXBsZSBub25jZQ=="}
    upgrade = status_is(where, (200, 400, 403, 426), connection="Upgrade", upgrade="websocket", **socket_key)
    yield "upgrade to a web socket", upgrade
    yield "method TRACE", status_is(where, (403, 405), "TRACE")
    yield "method PUT", status_is(where, (403, 405), "PUT", "/records/odd", origin=where.origin)
    line = b'{"action": "start", "key": "x"}\n'
    yield "a request to the runner from a browser's port", lambda: _no_page(raw(where, line, 1.0))


def _starts(answer: bytes, *wanted: bytes) -> str:
    return "" if answer.startswith(wanted) else f"it answered {answer[:60]!r}"


def _no_page(answer: bytes) -> str:
    return "it served a page" if b" 200 " in answer.split(b"\r\n")[0] or SECRET.encode() in answer else ""


def _guesses(where: Site) -> str:
    served = sum("set-cookie" in where.request("GET", f"/login?token={n}", cookie="")[1] for n in range(2000))
    return f"{served} sessions" if served else ""


def _quick(where: Site, text: bytes) -> str:
    began = time.monotonic()
    status, _, answer = where.request("POST", "/check", text, origin=where.origin)
    spent = time.monotonic() - began
    if status != 200 or not json.loads(answer)["problems"]:
        return f"it answered {status}: {answer[:100]}"
    return f"it took {spent:.1f} s" if spent > 10 else ""


def _refuses(where: Site, text: bytes) -> str:
    return (
        ""
        if "may not name the file" in where.request("POST", "/check", text, origin=where.origin)[2]
        else "it was read"
    )


def shown(where: Site) -> Iterator[Attack]:
    """Pages with hostile text, as a program sees them."""
    for name in TEXTS:

        def carry_out(name: str = name) -> str:
            pages = "".join(where.get(path)[2] for path in ("/", f"/records/hostile-{name}"))
            wrong = [mark for mark in ("<script>window", "<img src=x", "<svg onload", "hx-get='/pub") if mark in pages]
            return (
                f"it contains {wrong}" if wrong else "" if len(pages) < 400_000 else f"it has {len(pages)} characters"
            )

        yield f"record with text {name}", carry_out
    for name in ("odd", "deep", "%3Cimg%20src=x%20onerror=window.executed=1%3E"):
        yield f"record {name[:20]}", status_is(where, (200,), path=f"/records/{name}")
    yield "every record as an archive", status_is(where, (200,), path="/published.zip")
    yield "history of hostile names", status_is(where, (200,), path="/history")
    yield "comparison of hostile names", status_is(where, (400, 404), path="/compare?record=..%2fsecret&record=linked")


def held(where: Site, connections: int) -> Iterator[Attack]:
    """Clients that hold on to the server."""

    def slow(data: bytes, count: int) -> Callable[[], str]:
        def carry_out() -> str:
            kept = []
            try:
                for _ in range(count):
                    with contextlib.suppress(OSError):
                        connection = socket.create_connection(("127.0.0.1", where.port), timeout=2)
                        connection.sendall(data)
                        kept.append(connection)
                # The worst moment for somebody else's request.
                until(lambda: where.answers(), 30, "the page did not answer meanwhile")
            except TimeoutError as error:
                return str(error)
            finally:
                for connection in kept:
                    connection.close()
            until(lambda: where.answers(), 20, "the page did not answer afterwards")
            return ""

        return carry_out

    host = f"Host: 127.0.0.1:{where.port}\r\n"
    yield f"{connections} connections that say nothing", slow(b"", connections)
    yield f"{connections} connections with half a request", slow(f"GET / HTTP/1.1\r\n{host}X: ".encode(), connections)
    head = f"POST /check HTTP/1.1\r\n{host}Origin: {where.origin}\r\nCookie: {where.cookie}\r\n"
    head += "Content-Length: 100000\r\n\r\nx"
    yield "100 bodies that never end", slow(head.encode(), 100)
    watch = f"GET /records/deep/live HTTP/1.1\r\n{host}Cookie: {where.cookie}\r\n\r\n"
    yield "200 watchers that read nothing", slow(watch.encode(), 200)


def opened(where: Site) -> Iterator[Attack]:
    """Hostile records in a real browser."""
    with browser() as driver:
        where.let_in(driver)
        paths = ["/", "/history", "/compare", *(f"/records/hostile-{each}" for each in TEXTS)]
        for path in [*paths, "/records/%3Cimg%20src=x%20onerror=window.executed=1%3E"]:

            def carry_out(path: str = path) -> str:
                driver.get(where.origin + path)
                until(lambda: driver.execute_script("return document.readyState") == "complete", 60)
                time.sleep(0.5)
                executed = driver.execute_script("return window.executed || 0")
                # A frame of a record cannot reach the page, nor does it have its origin.
                for frame in driver.find_elements("tag name", "iframe"):
                    driver.switch_to.frame(frame)
                    origin = driver.execute_script("return window.origin")
                    driver.switch_to.default_content()
                    if origin != "null":
                        return f"a record's frame has the origin {origin}"
                return "a script ran" if executed else ""

            yield f"browser opens {path[:40]}", carry_out


@bench(plants={"attack": "an attack that succeeds"}, unjudged="attacks in a browser")
def main(given: Options) -> Outcome:
    failed, count = list[str](), 0
    with site() as where:
        where.login()
        records(where)
        groups = [requests(where), shown(where), held(where, 300 if given.quick else 1000)]
        if given.plant:
            groups = [iter([("a request of the page's own user", status_is(where, (421,)))])]
        for name, attack in (
            each for group in [*groups, *([] if given.quick or given.plant else [opened(where)])] for each in group
        ):
            count += 1
            try:
                wrong = attack()
            except (OSError, ValueError, TimeoutError) as error:
                wrong = f"{type(error).__name__}: {error}"
            if wrong:
                failed.append(name)
                print(f"{name}: {wrong}")
        until(lambda: where.answers(), 30, "the page does not answer afterwards")
        jobs = where.jobs()
    if jobs:
        failed.append(f"{len(jobs)} jobs were started")
    enough = count >= 60 or given.plant
    return Outcome(f"{count} attacks, {len(failed)} succeeded", not failed and enough)


if __name__ == "__main__":
    main()
