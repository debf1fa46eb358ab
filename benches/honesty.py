"""Whether the intervals are honest: on this host with aggressors that press on nothing, and in simulation.

On the host: runs with ten aggressors that are all the null kernel, beside different victims, exactly as `partywall run`
measures and analyses; each gives ten cells whose truth is known to be "no effect". In simulation: coverage of the
interval under white, autocorrelated and heavy-tailed noise, and with effects that outlast their slots
(benches/honesty_simulation.py), from 150 blocks on, as docs/statistics.md promises.

Bar: of at least 200 null cells (quick: 40) the 95 % interval excludes "no effect" in at most 8 % (quick: 15 %);
coverage in simulation 93 to 97 %, and carry-over above a tenth of the loss reported in at least 95 % of runs of 400
blocks, within twice the simulation's own standard error.
"""

from __future__ import annotations

from typing import Any

from common import measure
from frame import Options, Outcome, bench
from honesty_simulation import carry_over_table, coverage_table

VICTIMS = {
    "memory-copy": {"probe": "memory-copy"},
    "integer": {"probe": "integer"},
    "cache": {"probe": "cache", "params": {"level": "L3"}},
    "disk": {"probe": "disk-direct-read", "params": {"request_bytes": 8192, "file_bytes": 64 << 20}},
    "pipe": {"probe": "pipe"},
}
CELLS = 10
NULL: dict[str, Any] = {"stressor": "null"}
PRESSING: dict[str, Any] = {"stressor": "integer", "sandbox": {"cpus": "same"}}


def null_cells(victim: str, seconds: float, seed: int, aggressor: dict[str, Any]) -> list[tuple[float, float, float]]:
    """(low, value, high) of each null cell of one run."""
    nulls = {f"nothing-{n}": aggressor for n in range(CELLS)}
    content = {
        "name": f"honesty-{victim}",
        "victims": {victim: VICTIMS[victim]},
        "aggressors": nulls,
        "min_blocks": 8,
        # Never precise enough: every run uses its whole time, as the bar speaks of intervals and not of stopping.
        "precision": 0.0001,
        "budget": f"{seconds}s",
        "seed": seed,
    }
    _, findings = measure(content, seed)
    return [
        (cell.isolation.low, cell.isolation.value, cell.isolation.high) for cell in findings.cells if cell.aggressor
    ]


@bench(plants={"press": "null aggressors compute on the victim's CPU"})
def main(options: Options) -> Outcome:
    runs, seconds, allowed = (4, 8.0, 0.15) if options.quick else (22, 15.0, 0.08)
    victims = list(VICTIMS)
    cells: list[tuple[float, float, float]] = []
    for number in range(runs):
        victim = victims[number % len(victims)]
        nulls = null_cells(victim, seconds, seed=number + 1, aggressor=PRESSING if options.plant else NULL)
        wrong = sum(not low <= 1 <= high for low, _, high in nulls)
        widest = max((high - low) / 2 for low, _, high in nulls)
        print(
            f"run {number + 1}/{runs}, {victim}: {wrong} of {len(nulls)} null cells exclude no effect; "
            f"widest ±{widest:.2%}",
            flush=True,
        )
        cells += nulls
    share = sum(not low <= 1 <= high for low, _, high in cells) / len(cells)
    rows = [row for row in coverage_table(quick=options.quick) if row.promised]
    for row in rows:
        print(row)
    reports = carry_over_table(quick=options.quick)
    least = min(report.share for report in reports if report.must)
    honest = all(row.honest for row in rows) and all(report.right for report in reports)
    covered = f"{min(row.coverage for row in rows):.1%} to {max(row.coverage for row in rows):.1%}"
    figure = f"{share:.1%} of {len(cells)} null cells on this host exclude no effect; simulated coverage {covered}"
    simulated = f"{covered} over {len(rows)} cases; carry-over reported in at least {least:.1%} of runs"
    parts = {"simulation": (simulated, honest)}
    return Outcome(figure, share <= allowed and honest and len(cells) >= runs * CELLS, parts)


if __name__ == "__main__":
    main()
