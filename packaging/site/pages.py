"""A hook of mkdocs: the pages outside docs/, links to what is no page, and lists as CommonMark has them.

No page exists twice: what is added here stays where it is in the repository.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

CLONE = Path(__file__).parents[2]
OUTSIDE = {"index.md": "README.md", "ARCHITECTURE.md": "ARCHITECTURE.md", "CHANGELOG.md": "CHANGELOG.md"}
"""Pages of the site that are outside docs/, and their files."""
SOURCE = os.environ.get("SOURCE_URL", "")
"""Where the repository can be read, such as https://…/blob/main; without one, its other files are not linked."""
SHIM = "https://unpkg.com/iframe-worker/shim"
BOOSTS = {"Use": 10, "Which question do you have?": 10, "Where it runs": 5, "Reference": 5, "Kernels of work": 5}
"""How much more the search values pages of a part of the site than those of others."""

_LINK = re.compile(r"(!?\[[^\]\[]*(?:\[[^\]]*\][^\]\[]*)*\])\(([^)\s#:]+)(#[^)\s]*)?\)")
_ITEM = re.compile(r"^([-*]|\d+\.) +(?=\S)")


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File  # noqa: PLC0415 - the tests of the rest go without

    for page, file in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(CLONE / file)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001 - mkdocs names them
    place = page.file.src_uri
    above = page.ancestors[-1].title if page.ancestors else page.title
    page.meta["search"] = {"boost": BOOSTS.get(above, 1)}
    linked = _LINK.sub(lambda link: _linked(link, place), markdown)
    return "\n".join(_indented(linked.splitlines()))


def on_post_page(output: str, page: Any, config: Any) -> str:  # noqa: ARG001 - as above
    """The theme takes this script from another host; nothing of a site may come from there."""
    return output.replace(SHIM, posixpath.relpath("assets/worker.js", posixpath.dirname(page.url) or "."))


def on_post_template(output_content: str, template_name: str, config: Any) -> str:  # noqa: ARG001 - as above
    return output_content.replace(SHIM, "assets/worker.js")


def on_post_build(config: Any) -> None:
    """Writes the search's script, and the schemas with a catalogue of them in the format of schemastore.org."""
    shutil.copyfile(CLONE / "packaging/site/worker.js", Path(config["site_dir"]) / "assets/worker.js")
    folder = Path(config["site_dir"]) / "schema"
    folder.mkdir(exist_ok=True)
    for file in schemas():
        shutil.copyfile(file, folder / file.name)
    (folder / "catalog.json").write_text(json.dumps(catalogue(config["site_url"] or ""), indent=1) + "\n")


def schemas() -> list[Path]:
    """The schemas of files that users write."""
    return sorted(file for file in (CLONE / "schema").glob("*.schema.json") if file.name != "agent.schema.json")


def catalogue(address: str) -> dict[str, Any]:
    """The catalogue of the schemas of a site with this address."""
    listed = [
        {
            "name": (title := json.loads(file.read_text())["title"]),
            "description": f"{title}, version 1",
            "fileMatch": [f"*.partywall{'' if name == 'scenario' else f'-{name}'}.yaml"],
            "url": f"{address.rstrip('/')}/schema/{file.name}",
        }
        for file in schemas()
        for name in [file.name.partition(".")[0]]
    ]
    return {"$schema": "https://json.schemastore.org/schema-catalog.json", "version": 1, "schemas": listed}


def _linked(link: re.Match[str], place: str) -> str:
    """A link of the page at `place`, as the site has it."""
    text, path, anchor = link[1], link[2], link[3] or ""
    here = OUTSIDE.get(place, f"docs/{place}")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
    pages = {file: page for page, file in OUTSIDE.items()}
    inside = pages.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else "")
    if inside and (CLONE / target).is_file():
        return f"{text}({posixpath.relpath(inside, posixpath.dirname(place) or '.')}{anchor})"
    if not inside and (CLONE / target).exists():
        return f"{text}({SOURCE}/{target}{anchor})" if SOURCE else f"{text[1:-1]} (`{target}`)"
    # mkdocs reports it.
    return link[0]


def _indented(lines: list[str]) -> list[str]:
    """Lines with what belongs to an item of a list indented by four, as Python-Markdown needs it."""
    shown, width = [], 0
    for line in lines:
        if item := _ITEM.match(line):
            width = len(item[0])
        elif line.strip() and not line.startswith(" "):
            width = 0
        belongs = width and line.startswith(" " * width)
        shown.append(" " * 4 + line[width:] if belongs else line)
    return shown
