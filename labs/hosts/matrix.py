"""The matrix in docs/hosts.md: hosts × capabilities, from what a run of the lab wrote down. Pure but for the file."""

from __future__ import annotations

import textwrap
from collections.abc import Collection
from typing import Any

from benches.results import written
from labs.hosts.catalogue import HOSTS
from labs.hosts.checks import CHECKS
from labs.hosts.image import CLONE

DOCS = CLONE / "docs" / "hosts.md"
KEPT = CLONE / "labs" / "hosts" / "results.json"
"""The last result of each check on each host, checked in, so that a run of a few of them changes only their cells."""
WIDTH = 118
MARKS = {"works": "✓", "loss": "✓ with a loss", "cannot": "cannot", "failed": "FAILED"}


def write(record: dict[str, Any]) -> None:
    """Puts the matrix into the page; the rest of the page is kept."""
    DOCS.write_text(written(DOCS.read_text(), {"matrix": f"\n{matrix(record)}\n"}))


def matrix(record: dict[str, Any]) -> str:
    """A table of marks, then the figures and reasons, in the order of the catalogue."""
    tried: dict[str, dict[str, dict[str, Any]]] = record["hosts"]
    hosts = {name: tried[name] for name in HOSTS if name in tried}
    there = {check for results in hosts.values() for check in results}
    checks = [*(check for check in CHECKS if check in there), *sorted(there - set(CHECKS))]
    done = [result for results in hosts.values() for result in results.values()]
    emulated = any(result["accelerator"] == "tcg" for result in done)
    how = "emulated by QEMU, so figures are emulated" if emulated else "on KVM"
    when = textwrap.wrap(f"{_tried(done)}, {how}.", WIDTH, break_on_hyphens=False)
    lines = [*when, "", f"| host | {' | '.join(checks)} |", "|---" * (len(checks) + 1) + "|"]
    for name, results in hosts.items():
        cells = (MARKS[results[check]["status"]] if check in results else "–" for check in checks)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    for name, results in hosts.items():
        about = f"**{name}**: {HOSTS[name].summary}. {_tried(results.values())}."
        lines += ["", *textwrap.wrap(about, WIDTH, break_on_hyphens=False), ""]
        for check, result in sorted(results.items(), key=lambda pair: checks.index(pair[0])):
            lines += textwrap.wrap(f"- {check}: {_said(result)}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines)


def _tried(results: Collection[dict[str, Any]]) -> str:
    """When, and at which commits, as far as they are known."""
    dates = sorted({result["date"] for result in results})
    commits = sorted({result["commit"] for result in results if result.get("commit")})
    return f"Tried {' to '.join(dict.fromkeys((dates[0], dates[-1])))}" + f" at {', '.join(commits)}" * bool(commits)


def _said(result: dict[str, Any]) -> str:
    return result["text"] if result["status"] == "works" else f"{MARKS[result['status']]}: {result['text']}"
