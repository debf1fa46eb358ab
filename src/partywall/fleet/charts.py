"""Charts of a fleet: hosts and cells as small multiples, outliers first. From findings to an Altair chart."""

from __future__ import annotations

from typing import Any

import altair as alt

from partywall.core.report.charts import CATEGORIES, MUTED, inlined
from partywall.fleet.findings.findings import FleetFindings

MOST_CELLS = 50
COLUMNS = 3
WIDTH, HEIGHT_MOST = 240, 420


def multiples(findings: FleetFindings) -> Any:
    """Each cell as a small chart: one point a host, in the same order everywhere, with the range for an unseen host."""
    worse = findings.named
    hosts = [*worse, *(name for name in findings.measured if name not in worse)]
    cells = sorted(findings.cells, key=lambda cell: not any(host.is_named for host in cell.hosts))[:MOST_CELLS]
    rows = [
        {
            "cell": cell.name, "host": host.host, "value": host.value.value, "low": host.value.low,
            "high": host.value.high, "is": "differs" if host.is_outlier else "as the fleet",
            "from": cell.unseen[0] if cell.unseen else None, "to": cell.unseen[1] if cell.unseen else None,
        }
        for cell in cells
        for host in cell.hosts
    ]  # fmt: skip
    colours = alt.Scale(domain=["differs", "as the fleet"], range=[CATEGORIES[1], CATEGORIES[0]])
    base: Any = inlined(rows)
    band = base.mark_rect(color=MUTED, opacity=0.15).encode(x=alt.X("from:Q"), x2="to:Q", y=alt.Y("host:N", sort=hosts))
    each = base.encode(
        y=alt.Y("host:N", sort=hosts, title=None, axis=alt.Axis(labelLimit=160) if len(hosts) <= 40 else None),
        color=alt.Color("is:N", title=None, scale=colours),
        tooltip=["host:N", "cell:N", *(alt.Tooltip(f"{end}:Q", format=".4~g") for end in ("value", "low", "high"))],
    )
    point = each.mark_point(filled=True, size=40).encode(x=alt.X("value:Q", title=None, scale=alt.Scale(zero=False)))
    interval = each.mark_rule().encode(x=alt.X("low:Q"), x2="high:Q")
    height = max(50, min(HEIGHT_MOST, 16 * len(hosts)))
    drawn: Any = alt.layer(band, interval, point).properties(width=WIDTH, height=height)
    order = [cell.name for cell in cells]
    facets = drawn.facet(alt.Facet("cell:N", sort=order, title=None), columns=COLUMNS)
    return facets.resolve_scale(x="independent")
