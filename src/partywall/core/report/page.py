"""The frame of every page: head, style, script, Vega, and charts embedded as JSON."""

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
from partywall.core.report.charts import spec_of, theme
from partywall.core.stats.estimate import Outcome
from partywall.files import write_whole
from partywall.host.cache import cache_root

BADGES = {Outcome.HOLDS: "✓ holds", Outcome.VIOLATED: "✗ violated", Outcome.INCONCLUSIVE: "? inconclusive"}


def badge(outcome: Outcome, goals: int) -> str:
    """The badge of an outcome. Empty if nothing was asked: then nothing holds."""
    return "" if outcome is Outcome.HOLDS and not goals else BADGES[outcome]


SHOWN_ELSEWHERE = ("kernels", "missing")
"""Host facts that have a section of their own, or are not shown."""


def framed(
    template: str,
    specs: Mapping[str, Any],
    *,
    environment: jinja2.Environment | None = None,
    data: Mapping[str, Any] | None = None,
    scripts: Sequence[str] = (),
    **content: Any,
) -> str:
    """A whole page, from a template that extends base.html.j2.

    specs: its charts by id. data: further data for the script. scripts: assets in addition to the common script.
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
        loader=jinja2.PackageLoader("partywall.core.report", "assets"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {"duration": units.format_duration, "bytes": units.format_bytes}
    return environment


plain = cache(environment)
"""The environment of pages without their own filters."""


def facts(host: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Facts of a host as (path, text)."""
    return tuple(flat({key: fact for key, fact in host.items() if key not in SHOWN_ELSEWHERE}))


def flat(facts: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Nested host facts as (path, text), in their own order. None becomes 'unknown'."""
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
    """Data for the script, with the charts' themes, as JSON that cannot end its script element."""
    themes = {"light": theme(dark=False) | {"background": None}, "dark": theme(dark=True)}
    text = json.dumps(content | {"themes": themes}, separators=(",", ":"), ensure_ascii=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))  # noqa: S704 - escaped here


def fluid(chart: Any) -> dict[str, Any]:
    """A chart with the width of its place in the page."""
    return spec_of(chart) | {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}


def pack(specs: dict[str, Any]) -> dict[str, Any]:
    """Charts as (template, tables): the common part of similar charts is stored once, column names once per table."""
    templates: dict[str, int] = {}
    charts_by_id = {}
    for identity, spec in specs.items():
        tables: list[dict[str, Any]] = []
        text = json.dumps(_lifted(spec, tables), separators=(",", ":"))
        charts_by_id[identity] = [templates.setdefault(text, len(templates)), tables]
    return {"templates": [json.loads(text) for text in templates], "charts": charts_by_id}


def _lifted(part: Any, tables: list[dict[str, Any]]) -> Any:
    """A copy of `part`, with the rows of each data set replaced by their index in `tables`."""
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
    return Markup(files("partywall.core.report").joinpath("assets", name).read_text(encoding="utf-8"))  # noqa: S704 - our own file


@cache
def vega() -> Markup:
    """Vega, Vega-Lite and Vega-Embed as one script, from the copy in vl-convert.

    Bundling takes over a second, so the script is kept in the cache folder if that is writable.
    """
    kept = cache_root() / f"vega-{version('vl-convert-python')}.js"
    with contextlib.suppress(OSError, ValueError):
        digest, _, script = kept.read_text(encoding="utf-8").partition("\n")
        if kept.stat().st_uid in (0, os.geteuid()) and digest == _digest(script):
            return Markup(script)  # noqa: S704 - the library's own text, from the cache
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept, f"{_digest(script)}\n{script}")
    return Markup(script)  # noqa: S704 - the library's own text


def _digest(script: str) -> str:
    return hashlib.sha256(script.encode()).hexdigest()


def written(path: Path, data: bytes) -> Path:
    """Writes a file, creating its folder, and returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data)
    return path
