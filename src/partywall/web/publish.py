"""A folder of records as static pages to publish: nothing can be changed, and no server is needed. Reads only."""

from __future__ import annotations

import itertools
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from io import RawIOBase
from pathlib import Path
from typing import IO

from partywall.core.report import page
from partywall.errors import Problem, UsageError
from partywall.files import write_whole
from partywall.web import pages, records
from partywall.web.jobs import Folder

FILES = ("report.html", "findings.json")
LIST = ".partywall-published"
"""The names of all files that were written, one a line. It marks a folder that may be updated."""

PUBLISHED_MAX = 2000
PIECE_BYTES = 1 << 16


def files(folder: Folder) -> Iterator[tuple[str, Iterator[bytes]]]:
    """The files to publish: a page that lists the records, and the report and findings of each that has them.

    The report of a fleet leads to those of its hosts, which are published too. Each is a name and its content in
    pieces, to be read before the next. A file that has gone meanwhile is left out.
    """
    rows = [records.row(folder, named) for named in records.named(folder.root)[:PUBLISHED_MAX]]
    rows = [row for row in rows if not row.running and (folder.root / row.name / FILES[0]).is_file()]
    index = pages.render("published.html.j2", rows=rows, assets={"report.css": _style()}).encode()
    yield "index.html", iter((index,))
    for row in rows:
        for name in (*FILES, *_inside(folder.root / row.name)):
            if (file := records.file_in(folder, row.name, name)) is not None and (stream := _opened(file)) is not None:
                with stream:
                    yield f"{row.name}/{name}", iter(lambda stream=stream: stream.read(PIECE_BYTES), b"")  # type: ignore[misc]


def _inside(record: Path) -> list[str]:
    """The reports of a fleet's hosts within its record."""
    pages = itertools.islice(record.glob(f"hosts/*/record-*/{FILES[0]}"), PUBLISHED_MAX)
    return sorted(str(file.relative_to(record)) for file in pages)


def _opened(file: Path) -> IO[bytes] | None:
    try:
        return records.opened(file)
    except OSError:
        return None


def _style() -> str:
    own = pages.asset("web.css") or b""
    return page.asset("report.css") + own.decode()


def write(folder: Folder, out: Path, show: Callable[[str, int, int], None] = lambda *_: None) -> int:
    """Writes the files to a new folder, or to one that this function made before. Returns the number of records.

    An update removes what an earlier one wrote and this one does not. UsageError if the folder has other content, or
    cannot be written. show: gets the current file, the number of records written, and their total.
    """
    count, total, names = 0, min(PUBLISHED_MAX, len(records.named(folder.root))), []
    try:
        before = _made_before(out)
        out.mkdir(parents=True, exist_ok=True)
        for name, content in files(folder):
            show(f"writing {name}", count, total)
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            unfinished = out / f"{name}.new"
            with unfinished.open("wb") as stream:
                stream.writelines(content)
            unfinished.replace(out / name)
            names.append(name)
            # At once, so that an update after an interruption knows its files.
            with (out / LIST).open("a", encoding="utf-8") as listed:
                listed.write(f"{name}\n")
            count += name.count("/") == 1 and name.endswith(f"/{FILES[0]}")
        _remove(out, before - {*names})
        write_whole(out / LIST, "".join(f"{name}\n" for name in names))
    except OSError as error:
        problem = f"{error.filename or out} cannot be written: {error.strerror}"
        raise UsageError(Problem(problem, "give another --out")) from None
    return count


def _made_before(out: Path) -> set[str]:
    """The files that an earlier call wrote. UsageError if the folder has content that is not from one."""
    if (out / LIST).is_file():
        return {*(out / LIST).read_text(encoding="utf-8").split("\n")} - {""}
    if (out.is_dir() and not any(out.iterdir())) or not out.exists():
        return set()
    what = "has files that publish did not write" if out.is_dir() else "is a file"
    raise UsageError(Problem(f"{out} {what}", "give another --out: a new folder, or one that publish made"))


def _remove(out: Path, names: Iterable[str]) -> None:
    """Removes files of records that are gone. A list that someone changed removes nothing elsewhere."""
    for file in (out / name for name in names):
        if file.resolve().is_relative_to(out.resolve()):
            file.unlink(missing_ok=True)
            for above in file.parents:
                if above == out or not above.is_dir() or any(above.iterdir()):
                    break
                above.rmdir()


def packed(folder: Folder) -> Iterator[bytes]:
    """The files as a ZIP archive in pieces. Memory holds one piece of it, however large the folder is."""
    pending = _Pending()
    with closing(pending), zipfile.ZipFile(pending, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files(folder):
            with archive.open(f"partywall/{name}", "w") as entry:
                for piece in content:
                    entry.write(piece)
                    yield pending.taken()
            yield pending.taken()
        archive.close()
        yield pending.taken()


class _Pending(RawIOBase):
    """What was written and not yet taken. It cannot seek, so the archive has sizes behind its entries."""

    def __init__(self) -> None:
        super().__init__()
        self._content = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, piece: bytes) -> int:  # type: ignore[override]
        self._content += piece
        return len(piece)

    def taken(self) -> bytes:
        content = bytes(self._content)
        self._content.clear()
        return content
