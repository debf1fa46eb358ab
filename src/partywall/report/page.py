"""The frame of every page: head, style, script, Vega, and charts packed into JSON that stands in the page."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import vl_convert
from markupsafe import Markup

from partywall import __version__, units
from partywall.files import cache_root, write_whole
from partywall.model.finding import Outcome
from partywall.report import charts

BADGES = {Outcome.HOLDS: "✓ holds", Outcome.VIOLATED: "✗ violated", Outcome.INCONCLUSIVE: "? inconclusive"}
SHOWN_ELSEWHERE = ("kernels", "missing")
"""Facts of a host that have a section of their own, or none."""


def framed(
    template: str,
    specs: Mapping[str, Any],
    *,
    environment: jinja2.Environment | None = None,
    data: Mapping[str, Any] | None = None,
    scripts: Sequence[str] = (),
    **content: Any,
) -> str:
    """A whole page: a template that extends base.html.j2, filled.

    specs: its charts by id. data: more for the script. scripts: assets besides the script of every page.
    """
    return (environment or plain()).get_template(template).render(
        version=__version__,
        assets={name: asset(name) for name in ("report.css", "report.js", *scripts)},
        data=embedded(pack(dict(specs)) | {"trials": {}} | dict(data or {})),
        vega=vega(),
        badges=BADGES,
        **content,
    )  # fmt: skip


def environment() -> jinja2.Environment:
    """A new environment with the filters that any page may use."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("partywall.report", "assets"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": units.format_duration, "bytes": units.format_bytes}
    return environment


plain = cache(environment)
"""The environment of pages without filters of their own."""


def facts(host: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Facts of a host as (path, text)."""
    return tuple(flat({key: fact for key, fact in host.items() if key not in SHOWN_ELSEWHERE}))


def flat(facts: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Nested host facts as (path, text), in their own order; what is None is said to be unknown."""
    if isinstance(facts, dict):
        for key, value in facts.items():
            yield from flat(value, f"{path} · {key}".removeprefix(" · ").replace("_", " "))
    elif isinstance(facts, list | tuple):
        if any(isinstance(fact, dict | list | tuple) for fact in facts):
            yield from (pair for number, fact in enumerate(facts) for pair in flat(fact, f"{path} {number}"))
        else:
            yield path, ", ".join(map(str, facts))
    elif path.endswith(" bytes") and isinstance(facts, int):
        yield path.removesuffix(" bytes"), units.format_bytes(facts)
    else:
        yield path, "unknown" if facts is None else str(facts)


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
