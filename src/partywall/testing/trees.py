r"""Host trees: the files of a host that Partywall reads, as one text that people can read and edit.

Comments begin with #. Every other line is one of

  PATH = TEXT       a file of one line
  PATH := TEXT      the same, without a final line break
  PATH |            a file of several lines; each follows after "| "
  PATH :|           the same, without a final line break
  PATH              an empty file
  PATH/             an empty folder
  PATH -> TARGET    a symbolic link
  PATH ! REASON     a file that cannot be read

Spaces in a path are written \040. A path may contain numbers in braces, such as
/sys/devices/system/cpu/cpu{0-3,8}/topology/core_id, and stands for one path for each number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from partywall import units

_NUMBERS = re.compile(r"\{([0-9,-]+)\}")


@dataclass(frozen=True)
class Entry:
    """The entry of one path. kind: the form of its line."""

    kind: str
    text: str = ""


@dataclass(frozen=True)
class Tree:
    """A host's files by path."""

    entries: Mapping[str, Entry]

    def lay_out(self, folder: Path) -> None:
        """Creates the files below a folder."""
        for path, entry in self.entries.items():
            place = folder / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            _MAKE[entry.kind](place, entry.text)

    def changed(self, changes: Mapping[str, Entry | None]) -> Tree:
        """The tree with changed entries; None removes one."""
        whole = {**self.entries, **changes}
        return Tree({path: entry for path, entry in whole.items() if entry is not None})


def _file(place: Path, text: str) -> None:
    place.write_text(text, encoding="utf-8", errors="surrogateescape")


def _folder(place: Path, _text: str) -> None:
    place.mkdir(exist_ok=True)


def _link(place: Path, target: str) -> None:
    place.symlink_to(target)


# A directory cannot be read as a file, even by root, whom permissions do not stop.
_MAKE: dict[str, Callable[[Path, str], None]] = {"=": _file, "/": _folder, "->": _link, "!": _folder}


def read(text: str) -> Tree:
    """Parses a tree. Raises ValueError with the line if it is malformed."""
    return Tree(dict(_entries(text)))


def _entries(text: str) -> Iterator[tuple[str, Entry]]:
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith("/"):
            raise ValueError(f"line {number}: {line!r} begins with no path")
        if line.endswith((" |", " :|")):
            following = number
            while following < len(lines) and lines[following].startswith("|"):
                following += 1
            content = "\n".join(each[2:] for each in lines[number:following])
            number = following
            path, _, mark = line.rpartition(" ")
            yield from ((each, Entry("=", content + ("\n" if mark == "|" else ""))) for each in _paths(path))
        else:
            yield from _single(line)


def _single(line: str) -> Iterator[tuple[str, Entry]]:
    for mark, kind, end in ((" = ", "=", "\n"), (" := ", "=", ""), (" -> ", "->", ""), (" ! ", "!", "")):
        path, mark_there, text = line.partition(mark)
        if mark_there and " " not in path:
            yield from ((name, Entry(kind, text + end)) for name in _paths(path))
            return
    kind, path = ("/", line[:-1]) if line.endswith("/") else ("=", line)
    yield from ((name, Entry(kind)) for name in _paths(path))


def _paths(path: str) -> Iterator[str]:
    match = _NUMBERS.search(path)
    if match is None:
        yield path.replace("\\040", " ")
        return
    for number in units.parse_cpus(match[1]):
        yield from _paths(f"{path[: match.start()]}{number}{path[match.end() :]}")
