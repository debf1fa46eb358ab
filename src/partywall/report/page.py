"""What every page shares: its style and script, Vega, and charts packed into JSON that stands in a page."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import vl_convert
from markupsafe import Markup

from partywall.files import cache_root, write_whole
from partywall.report import charts


def embedded(content: dict[str, Any]) -> Markup:
    """What the script reads, as JSON that cannot end its own script element, with the charts' themes."""
    themes = {"light": charts.theme(dark=False) | {"background": None}, "dark": charts.theme(dark=True)}
    text = json.dumps(content | {"themes": themes}, separators=(",", ":"), ensure_ascii=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))  # noqa: S704 - escaped here


def fluid(chart: Any) -> dict[str, Any]:
    """A chart that takes the width of its place in the page."""
    return charts.spec_of(chart) | {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}


def pack(specs: dict[str, Any]) -> dict[str, Any]:
    """Charts as (template, tables): what charts of one kind share is written once, and column names once a table."""
    templates: dict[str, int] = {}
    charts_by_id = {}
    for identity, spec in specs.items():
        tables: list[dict[str, Any]] = []
        text = json.dumps(_lifted(spec, tables), separators=(",", ":"))
        charts_by_id[identity] = [templates.setdefault(text, len(templates)), tables]
    return {"templates": [json.loads(text) for text in templates], "charts": charts_by_id}


def _lifted(part: Any, tables: list[dict[str, Any]]) -> Any:
    """A copy of `part` in which the rows of each data set are replaced by their place in `tables`."""
    if isinstance(part, list):
        return [_lifted(item, tables) for item in part]
    if not isinstance(part, dict):
        return part
    if set(part) == {"values"} and all(isinstance(row, dict) for row in part["values"]):
        columns = list(part["values"][0]) if part["values"] else []
        tables.append({"columns": columns, "rows": [[row[name] for name in columns] for row in part["values"]]})
        return {"table": len(tables) - 1}
    return {key: _lifted(value, tables) for key, value in part.items()}


@cache
def asset(name: str) -> Markup:
    return Markup(files("partywall.report").joinpath("assets", name).read_text(encoding="utf-8"))  # noqa: S704 - our own file


@cache
def vega() -> Markup:
    """Vega, Vega-Lite and Vega-Embed as one script, from the copy that vl-convert carries.

    Packing it takes over a second, so the script is kept in the cache folder, where that can be written.
    """
    kept = cache_root() / f"vega-{version('vl-convert-python')}.js"
    with contextlib.suppress(OSError, ValueError):
        digest, _, script = kept.read_text(encoding="utf-8").partition("\n")
        if kept.stat().st_uid in (0, os.geteuid()) and digest == _digest(script):
            return Markup(script)  # noqa: S704 - a library's own text, as it was packed
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept, f"{_digest(script)}\n{script}")
    return Markup(script)  # noqa: S704 - a library's own text


def _digest(script: str) -> str:
    return hashlib.sha256(script.encode()).hexdigest()


def written(path: Path, data: bytes) -> Path:
    """The path, once the file is there; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
