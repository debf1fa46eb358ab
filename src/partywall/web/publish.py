"""A folder of records as static pages to publish: nothing can be changed, and no server is needed. Reads only."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from partywall.errors import Problem, UsageError
from partywall.report import page
from partywall.web import pages, records
from partywall.web.jobs import Folder

FILES = ("report.html", "findings.json")
PUBLISHED_MAX = 2000


def files(folder: Folder) -> Iterator[tuple[str, bytes]]:
    """The files to publish: a page that lists the records, and the report and findings of each that has them."""
    rows = [records.row(folder, named) for named in records.named(folder.root)[:PUBLISHED_MAX]]
    rows = [row for row in rows if not row.running and (folder.root / row.name / FILES[0]).is_file()]
    yield "index.html", pages.render("published.html.j2", rows=rows, assets={"report.css": _style()}).encode()
    for row in rows:
        for name in FILES:
            if (file := records.file_in(folder, row.name, name)) is not None:
                yield f"{row.name}/{name}", file.read_bytes()


def _style() -> str:
    own = pages.asset("web.css") or b""
    return page.asset("report.css") + own.decode()


def write(folder: Folder, out: Path, show: Callable[[str, int, int], None] = lambda *_: None) -> int:
    """Writes the files to a new folder. Returns the number of records. UsageError if something exists there.

    show: gets the current file, the number of records written, and their total.
    """
    try:
        out.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(Problem(f"{out} exists already", "give another --out")) from None
    except OSError as error:
        raise UsageError(Problem(f"{out} cannot be created: {error.strerror}", "give another --out")) from None
    count, total = 0, min(PUBLISHED_MAX, len(records.named(folder.root)))
    for name, content in files(folder):
        show(f"writing {name}", count, total)
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_bytes(content)
        count += name.endswith(f"/{FILES[0]}")
    return count


def packed(folder: Folder) -> bytes:
    """The files as a ZIP archive."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files(folder):
            archive.writestr(f"partywall/{name}", content)
    return stream.getvalue()
