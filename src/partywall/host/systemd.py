"""Limits of units through systemd, over its own socket: D-Bus, with the standard library alone.

systemd writes the limits of its units' cgroups again whenever it is reloaded, so limits that it does not know of are
lost then. A runtime property is a file below `CONTROL` and a limit of the cgroup. A watchdog may run this file as a
script that undoes runtime properties: UNIT, a JSON list of properties, and files to remove.
Sources: org.freedesktop.systemd1(5), D-Bus specification 0.43.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
from types import TracebackType
from typing import Any, Self

SOCKET = "/run/systemd/private"
CONTROL = "/run/systemd/system.control"
"""The folder of files that runtime properties leave."""
INFINITY = 2**64 - 1
MANAGER = ("/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
PROPERTIES = "org.freedesktop.DBus.Properties"
TIMEOUT_S = 5.0
FIXED = {"y": "B", "b": "I", "u": "I", "i": "i", "t": "Q", "x": "q", "d": "d"}
RETURN, ERROR = 2, 3
Property = tuple[str, tuple[str, Any]]
"""A name, and a signature with its value."""


class SystemdError(Exception):
    """systemd refuses, or does not answer. The text is its own."""


class Systemd:
    """A connection. socket_path: systemd's. SystemdError if nothing answers there."""

    def __init__(self, socket_path: str = SOCKET) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(TIMEOUT_S)
        self._serial, self._data = 0, b""
        try:
            self._socket.connect(socket_path)
            # At once: systemd does not look at a message that it has read together with BEGIN.
            user = str(os.geteuid()).encode().hex().encode()
            self._socket.sendall(b"\0AUTH EXTERNAL " + user + b"\r\nBEGIN\r\n")
            while not self._data.endswith(b"\r\n") and (part := self._socket.recv(256)):
                self._data += part
        except OSError as error:
            raise SystemdError(f"{socket_path}: {error.strerror or error}") from None
        if not self._data.startswith(b"OK"):
            raise SystemdError(f"{socket_path} refuses user {os.geteuid()}")
        self._data = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def set(self, unit: str, *properties: Property) -> None:
        """Sets properties of a unit until the next boot."""
        self._ask(*MANAGER, "SetUnitProperties", "sba(sv)", unit, True, list(properties))

    def thaw(self, unit: str, *, frozen: bool) -> None:
        """Stops all processes of a unit, or lets them go on."""
        self._ask(*MANAGER, "FreezeUnit" if frozen else "ThawUnit", "s", unit)

    def get(self, unit: str, name: str, kind: str = "") -> Any:
        """A property of a unit. kind: that all units have it (Unit); by default, units of its own kind."""
        kind = kind or unit.rpartition(".")[2].capitalize()
        path = self._ask(*MANAGER, "GetUnit", "s", unit)
        return self._ask(str(path), PROPERTIES, "Get", "ss", f"org.freedesktop.systemd1.{kind}", name)

    def _ask(self, path: str, interface: str, member: str, signature: str, *body: Any) -> Any:
        self._serial += 1
        content = _packed(f"({signature})", body)
        fields = [(1, ("o", path)), (2, ("s", interface)), (3, ("s", member)), (8, ("g", signature))]
        head = struct.pack("<cBBBII", b"l", 1, 0, 1, len(content), self._serial)
        head = _packed("a(yv)", fields, head)
        try:
            self._socket.sendall(head + bytes(-len(head) % 8) + content)
            while True:
                kind, serial, values = self._message()
                if serial == self._serial and kind in (RETURN, ERROR):
                    break
        except OSError as error:
            raise SystemdError(f"systemd does not answer: {error.strerror or error}") from None
        first = values[0] if values else None
        if kind == ERROR:
            raise SystemdError(str(first))
        return first

    def _message(self) -> tuple[int, int, list[Any]]:
        """The next message: its kind, the call that it answers, and its values."""
        start = self._read(16)
        length, fields_length = struct.unpack_from("<I", start, 4)[0], struct.unpack_from("<I", start, 12)[0]
        rest = self._read(-(-fields_length // 8) * 8 + length)
        fields, _ = _unpacked("a(yv)", start + rest, 12)
        known = dict(fields)
        values = list[Any]()
        # Signals have types that are not needed here.
        if start[1] in (RETURN, ERROR) and (signature := str(known.get(8, ""))):
            inside, _ = _unpacked(f"({signature})", rest[-length:], 0)
            values = list(inside)
        return start[1], int(known.get(5, 0)), values

    def _read(self, size: int) -> bytes:
        while len(self._data) < size:
            if not (part := self._socket.recv(65536)):
                raise OSError("the connection has ended")
            self._data += part
        out, self._data = self._data[:size], self._data[size:]
        return out


def _types(signature: str) -> list[str]:
    """The complete types of a signature."""
    found, at = [], 0
    while at < len(signature):
        end = at
        while signature[end] == "a":
            end += 1
        depth = 0
        while True:
            depth += {"(": 1, ")": -1}.get(signature[end], 0)
            end += 1
            if not depth:
                break
        found.append(signature[at:end])
        at = end
    return found


def _alignment(kind: str) -> int:
    if kind[0] in "(txd":
        return 8
    return 1 if kind[0] in "ygv" else 4


def _packed(kind: str, value: Any, out: bytes = b"") -> bytes:
    """A value of a type behind some bytes."""
    out += bytes(-len(out) % _alignment(kind))
    if kind[0] == "(":
        for part, each in zip(_types(kind[1:-1]), value, strict=True):
            out = _packed(part, each, out)
        return out
    if kind[0] == "a":
        begin = len(out) + 4 + -(len(out) + 4) % _alignment(kind[1:])
        inside = out + bytes(begin - len(out))
        for each in value:
            inside = _packed(kind[1:], each, inside)
        return out + struct.pack("<I", len(inside) - begin) + inside[len(out) + 4 :]
    if kind == "v":
        signature, each = value
        return _packed(signature, each, _packed("g", signature, out))
    if kind in "sog":
        text = str(value).encode()
        return out + struct.pack("B" if kind == "g" else "<I", len(text)) + text + b"\0"
    return out + struct.pack(f"<{FIXED[kind]}", value)


def _unpacked(kind: str, data: bytes, at: int) -> tuple[Any, int]:
    """The value of a type at a place, and the place behind it."""
    at += -at % _alignment(kind)
    if kind[0] == "(":
        values = []
        for part in _types(kind[1:-1]):
            value, at = _unpacked(part, data, at)
            values.append(value)
        return tuple(values), at
    if kind[0] == "a":
        end = struct.unpack_from("<I", data, at)[0]
        at += 4
        at += -at % _alignment(kind[1:])
        end += at
        values = []
        while at < end:
            value, at = _unpacked(kind[1:], data, at)
            values.append(value)
        return values, at
    if kind == "v":
        signature, at = _unpacked("g", data, at)
        return _unpacked(str(signature), data, at)
    if kind in "sog":
        width = 1 if kind == "g" else 4
        length = int.from_bytes(data[at : at + width], "little")
        begin = at + width
        return data[begin : begin + length].decode(), begin + length + 1
    size = struct.calcsize(f"<{FIXED[kind]}")
    return struct.unpack_from(f"<{FIXED[kind]}", data, at)[0], at + size


def main() -> None:
    """Sets the properties of before, and removes files that were not there before.

    systemd is not reloaded: that would undo what others wrote behind its back, and it reads the files at its next one.
    """
    unit, text, *files = sys.argv[1:]
    refused = ""
    try:
        with Systemd() as systemd:
            systemd.set(unit, *json.loads(text))
    except SystemdError as error:
        # A unit that has ended has no limit any more, but its next start would read the files.
        refused = "" if str(error).endswith("not loaded.") else str(error)
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file)  # noqa: PTH108 - nothing else is imported
    for folder in {os.path.dirname(file) for file in files}:  # noqa: PTH120
        with contextlib.suppress(OSError):
            # Somebody else may have files in it.
            os.rmdir(folder)  # noqa: PTH106
    sys.exit(refused or None)


if __name__ == "__main__":
    main()
