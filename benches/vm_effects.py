"""Whether the effects that must appear between guests do, and whether a neighbour that does nothing shows none.

Victims and aggressors in guests of their own: computing on one CPU; copying memory beside memory copying; direct reads
of a disk beside direct writes of two sizes and buffered writes. Each is judged by its interval, and one aggressor
against another by the blocks that both were in.

Bar: sharing a CPU, memory bandwidth and a disk hurt, with intervals that exclude 1; direct writes of larger requests
hurt more than of smaller ones, and more than buffered writes; the null aggressor stays inside its band. Where memory
bandwidth or an order among the disk's does not show, what the same does between processes of this host is measured and
said: an effect that the host does not have either, or that emulation takes away, is no miss.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from common import arguments, conclude, measure
from guests import needed
from partywall.model.finding import Cell, Estimate
from partywall.stats.series import Measured, Series

GUEST = {"backend": "qemu"}
FILE = {"file_bytes": 64 << 20}
MEMORY = {"probe": "memory-copy"}
DISK = {"probe": "disk-direct-read", "params": {"request_bytes": 8192} | FILE}
WRITES = {
    name: {"stressor": stressor, "params": {"request_bytes": size} | FILE, "settle": "100ms"}
    for name, stressor, size in (
        ("direct-8KiB", "disk-direct-write", 8 << 10),
        ("direct-128KiB", "disk-direct-write", 128 << 10),
        ("buffered-128KiB", "disk-write", 128 << 10),
    )
}


Found = tuple[dict[str, Cell], Series]


def run(victim: dict[str, Any], aggressors: dict[str, Any], seconds: int, sandbox: dict[str, Any] = GUEST) -> Found:
    """Cells by aggressor, the null one called null, and the blocks behind them."""
    content = {
        "name": "effects",
        "victims": {"victim": victim | {"sandbox": sandbox}},
        "aggressors": {
            name: aggressor | {"sandbox": sandbox | aggressor.get("sandbox", {})}
            for name, aggressor in aggressors.items()
        },
        "min_blocks": 8,
        "precision": 0.005,
        "budget": f"{seconds}s",
    }
    evidence, findings = measure(content)
    for reason in findings.incomplete:
        print(f"failed: {reason}", flush=True)
    cells = {cell.aggressor or cell.role: cell for cell in findings.cells}
    trial = next((cell.trial for cell in findings.cells), "")
    return cells, Measured.of(evidence.observations, trial).holding(next((c.treatment for c in cells.values()), ""))


def told(name: str, cell: Cell | None) -> str:
    if cell is None:
        return f"{name}: not measured"
    factor = cell.isolation
    return f"{name}: isolation factor {factor.value:.3f} ({factor.low:.3f} to {factor.high:.3f})"


def hurts(cell: Cell | None) -> bool:
    return cell is not None and cell.isolation.high < 1


def quiet(cell: Cell | None) -> bool:
    return cell is not None and cell.isolation.low <= 1 <= cell.isolation.high


def more_harm(found: Found, worse: str, better: str) -> Estimate | None:
    """What the victim does beside the one over what it does beside the other."""
    cells, series = found
    if not {worse, better} <= cells.keys():
        return None
    return series.pair(cells[worse].treatment, cells[better].treatment).factor()


def ordered(guests: Found, processes: Callable[[], Found], worse: str, better: str) -> bool:
    """Whether one hurts more than the other; or else, what the same is without guests."""
    inside = more_harm(guests, worse, better)
    if inside is None:
        return False
    print(f"{worse} over {better}: {inside.value:.3f} ({inside.low:.3f} to {inside.high:.3f})", flush=True)
    if inside.high < 1:
        return True
    outside = more_harm(processes(), worse, better)
    if outside is None:
        return False
    print(
        f"  between processes of this host: {outside.value:.3f} ({outside.low:.3f} to {outside.high:.3f})", flush=True
    )
    # The host's disk does not order them so either, or guests take it away and the intervals show it.
    return outside.high >= 1 or inside.low > outside.high


def memory_shows(found: Found, seconds: int) -> bool:
    cell = found[0].get("memory")
    if cell is None or hurts(cell):
        return cell is not None
    outside = run(MEMORY, {"memory": {"stressor": "memory-copy"}}, seconds, {"backend": "process"})[0].get("memory")
    if outside is None:
        return False
    part = cell.baseline_rate.value / outside.baseline_rate.value
    print(
        f"memory bandwidth: not seen. Of a process's rate a guest copies {part:.1%}; {told('process', outside)}",
        flush=True,
    )
    return cell.isolation.low > outside.isolation.high


def main() -> None:
    options = arguments(__doc__ or "")
    needed("vm-effects")
    seconds = 9 if options.quick else 90
    cpu = run({"probe": "integer"}, {"cpu": {"stressor": "integer", "sandbox": {"cpus": "same"}}}, seconds)
    memory = run(MEMORY, {"memory": {"stressor": "memory-copy"}}, seconds)
    disk = run(DISK, WRITES, 2 * seconds)
    for name, cell in (item for found in (cpu, memory, disk) for item in found[0].items()):
        print(told(name, cell), flush=True)

    @functools.cache
    def outside() -> Found:
        return run(DISK, WRITES, 2 * seconds, {"backend": "process"})

    nulls = [quiet(found[0].get("null")) for found in (cpu, memory, disk)]
    shown = {
        "CPU": hurts(cpu[0].get("cpu")),
        "memory bandwidth, or why not": memory_shows(memory, seconds),
        "disk": hurts(disk[0].get("direct-128KiB")),
        "larger requests more, or why not": ordered(disk, outside, "direct-128KiB", "direct-8KiB"),
        "direct most, or why not": ordered(disk, outside, "direct-128KiB", "buffered-128KiB"),
    }
    said = ", ".join(f"{what}{'' if found else ' NOT'}" for what, found in shown.items())
    conclude("vm-effects", f"shown: {said}; null quiet in {sum(nulls)} of 3", met=all(shown.values()) and all(nulls))


if __name__ == "__main__":
    main()
