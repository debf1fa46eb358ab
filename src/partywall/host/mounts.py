"""The table of mounts. Source: proc_pid_mountinfo(5)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ESCAPED = re.compile(r"\\([0-3][0-7]{2})")


@dataclass(frozen=True)
class Mount:
    """One line of the table. device: major and minor number; options: those of the file system.

    read_only: nobody may write at this mount, whatever the file system allows.
    """

    point: Path
    kind: str
    source: str
    device: tuple[int, int]
    options: tuple[str, ...]
    read_only: bool = False

    def option(self, name: str) -> str | None:
        """The value of an option; None if it is not set."""
        prefix = f"{name}="
        return next((_plain(option.removeprefix(prefix)) for option in self.options if option.startswith(prefix)), None)


def mounts(root: Path) -> list[Mount]:
    """The mounts that this process sees, in the order of the table. Empty if there is no table."""
    try:
        text = (root / "proc/self/mountinfo").read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return []
    return list(_read(text))


def _read(text: str) -> Iterator[Mount]:
    """Parses the table. Malformed lines are skipped."""
    for line in text.split("\n"):
        before, dash, after = line.partition(" - ")
        place, kind = before.split(" "), (*after.split(" "), "", "")
        if not dash or len(place) < 6 or not re.fullmatch(r"\d+:\d+", place[2]):
            continue
        major, minor = map(int, place[2].split(":"))
        point, options = Path(_plain(place[4])), tuple(kind[2].split(","))
        yield Mount(point, kind[0], _plain(kind[1]), (major, minor), options, read_only="ro" in place[5].split(","))


def _plain(text: str) -> str:
    """Decodes the octal escapes of spaces and similar characters."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)
