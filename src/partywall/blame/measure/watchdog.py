"""Puts limits back if the experiment dies or hangs. Runs as a process of its own, with the standard library alone.

Its input is one line of JSON, {"note": path, "pid": number, "before": {file: content}, "patience_s": seconds}, and then
a byte for each slot. If none comes in time, or the input ends without a last `q`, it writes `before`.
"""

import contextlib
import json
import os
import select
import sys


def main() -> None:
    """Waits for the end of the input."""
    stream = sys.stdin.fileno()
    if not (line := _line(stream)).endswith(b"\n"):
        # The experiment died before it changed anything.
        return
    given = json.loads(line)
    while True:
        ready, _, _ = select.select([stream], [], [], given["patience_s"])
        data = os.read(stream, 4096) if ready else None
        if data and data.endswith(b"q"):
            return
        if not data:
            put_back(given["before"])
        if data == b"":
            _forget(given["note"], given["pid"])
            return


def _line(stream: int) -> bytes:
    out = b""
    while not out.endswith(b"\n") and (part := os.read(stream, 1)):
        out += part
    return out


def put_back(before: dict[str, str]) -> None:
    """Writes the contents in their order. A group may be gone."""
    for file, text in before.items():
        with contextlib.suppress(OSError), open(file, "w") as out:  # noqa: PTH123 - nothing else is imported
            out.write(text)


def _forget(note: str, pid: int) -> None:
    """Removes the note of the dead process. One that another process wrote stays."""
    with contextlib.suppress(OSError, ValueError, KeyError), open(note) as file:  # noqa: PTH123
        if json.load(file)["pid"] == pid:
            os.unlink(note)  # noqa: PTH108


if __name__ == "__main__":
    main()
