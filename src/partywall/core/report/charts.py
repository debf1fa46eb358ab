"""What all charts share: sizes, colours, the themes of light and dark pages, inlined data, and specifications."""

from __future__ import annotations

from typing import Any

import altair as alt

Rows = list[dict[str, Any]]
AnyChart = alt.Chart | alt.LayerChart | alt.FacetChart
WIDTH, HEIGHT = 640, 240
BASELINE, TREATED, MUTED, BAND = "#2b83c6", "#d55e00", "#8a8f98", "#8a8f98"
# The palette of Okabe and Ito, which is distinguishable with any common colour blindness. Black and yellow are left
# out, because each is invisible on one of the two backgrounds. Dark: the same hues, lighter.
CATEGORIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8f98")
CATEGORIES_DARK = ("#56b4e9", "#e8813a", "#2fc59b", "#e29cc4", "#f0b43c", "#a9d6f5", "#a3a9b3")


def theme(*, dark: bool) -> dict[str, Any]:
    """Vega-Lite configuration that matches the page around a chart."""
    ink, soft, grid = ("#e6e8eb", "#a3a9b3", "#30353d") if dark else ("#1c2126", "#59616b", "#e3e6ea")
    font = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
    axis = {"labelColor": soft, "titleColor": soft, "gridColor": grid, "domainColor": soft, "tickColor": soft}
    return {
        "background": None if dark else "white",
        "font": font,
        "view": {"stroke": None},
        "axis": axis | {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal", "titlePadding": 8},
        "legend": {
            "labelColor": ink,
            "titleColor": soft,
            "labelFontSize": 11,
            "titleFontSize": 11,
            "orient": "top",
            "labelLimit": 260,
        },
        "title": {
            "color": ink,
            "subtitleColor": soft,
            "anchor": "start",
            "fontSize": 14,
            "subtitleFontSize": 11,
            "fontWeight": 600,
            "offset": 12,
        },
        "text": {"color": ink, "fontSize": 11},
        "rule": {"color": soft},
        "range": {"category": list(CATEGORIES_DARK if dark else CATEGORIES)},
    }


def titled(chart: Any, title: str, subtitle: str = "", *, dark: bool = False) -> dict[str, Any]:
    """A stand-alone specification, with title and theme, for image files."""
    spec = spec_of(chart)
    spec["title"] = {"text": title, "subtitle": subtitle} if subtitle else {"text": title}
    spec["config"] = theme(dark=dark)
    spec["padding"] = 16
    return spec


def spec_of(chart: Any) -> dict[str, Any]:
    """The specification without Altair's default theme."""
    with alt.data_transformers.enable(consolidate_datasets=False):
        spec: dict[str, Any] = chart.to_dict(validate=False)
    spec.pop("config", None)
    return dict(_filled(spec))


class _Held(str):
    """Stands for rows while a chart is made. Altair copies and checks every value, of which a page has many."""

    __slots__ = ("rows",)
    rows: Rows


def inlined(rows: Rows) -> alt.Chart:
    """A chart with these rows as inlined data."""
    held = _Held()
    held.rows = rows
    return alt.Chart(alt.InlineData(values=held))


def _filled(part: Any) -> Any:
    """A part of a specification with its rows."""
    if isinstance(part, _Held):
        return part.rows
    if isinstance(part, dict):
        return {name: _filled(value) for name, value in part.items()}
    return [_filled(value) for value in part] if isinstance(part, list) else part


def slower(what: str) -> alt.X:
    """An axis of the share of slower items, on which 99 % and 99.9 % are as wide as 90 %."""
    names = "datum.value >= 1 ? '0 %' : datum.value > 0.49 ? '50 %' : format(100 - 100 * datum.value, '.6~f') + ' %'"
    return alt.X(
        "slower:Q",
        title=f"share of {what} that are at least this fast",
        scale=alt.Scale(type="log", reverse=True, nice=False),
        axis=alt.Axis(values=[1, 0.5, 0.1, 0.01, 0.001, 1e-4, 1e-5, 1e-6], labelExpr=names),
    )
