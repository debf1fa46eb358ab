"""Whether the effects that must appear between guests do, and whether a neighbour that does nothing shows none.

Victims and aggressors in guests of their own: computing on one CPU; copying memory beside memory copying; direct reads
of a disk beside direct writes of two sizes and buffered writes. Each is judged by its interval, and one aggressor
against another by the blocks that both were in.

Bar: sharing a CPU, memory bandwidth and a disk hurt, with intervals that exclude 1; direct writes of larger requests
hurt more than of smaller ones, and more than buffered writes; the null aggressor's interval holds 1 and is narrow.
Where memory bandwidth or an order among the disk's does not show, what the same does between processes of this host is
measured and said, and for memory also between a guest and a process: an effect that the host has and emulated guests
demonstrably have less of, or an order that the host's disk demonstrably does not have, is no miss. What is only
uncertain is one.

--quick: CPU and disk alone, for a sixth of the time. Orders are not judged, and a null interval may be wider.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from common import measure
from disturbance import undisturbed
from frame import Options, Outcome, bench
from guests import lacking
from partywall.agent.catalogue import Warn
from partywall.core.stats.estimate import Estimate
from partywall.run.findings.series import Measured, Series
from partywall.run.values.finding import Cell

GUEST = {"backend": "qemu"}
FILE = {"file_bytes": 64 << 20}
MEMORY = {"probe": "memory-copy"}
DISK = {"probe": "disk-direct-read", "params": {"request_bytes": 8192} | FILE}
COPIES = {"guest": "qemu", "process": "process"}
# An interval this narrow about 1 says that there is no effect, or no order; a wider one says nothing.
NARROW, NARROW_QUICK = 0.1, 0.3
WRITES = {
    name: {"stressor": stressor, "params": {"request_bytes": size} | FILE, "settle": "100ms"}
    for name, stressor, size in (
        ("direct-8KiB", "disk-direct-write", 8 << 10),
        ("direct-128KiB", "disk-direct-write", 128 << 10),
        ("buffered-128KiB", "disk-write", 128 << 10),
    )
}


Effects = tuple[dict[str, Cell], Series]


def run(victim: dict[str, Any], aggressors: dict[str, Any], seconds: int, sandbox: dict[str, Any] = GUEST) -> Effects:
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
    trial = evidence.plan.trials[0]
    measured = Measured.of(evidence.of_trial(trial.id), trial.treatments)
    return cells, measured.holding(next((cell.treatment for cell in cells.values()), ""))


def summary(name: str, cell: Cell | None) -> str:
    if cell is None:
        return f"{name}: not measured"
    factor = cell.isolation
    return f"{name}: isolation factor {factor.value:.3f} ({factor.low:.3f} to {factor.high:.3f})"


def hurts(cell: Cell | None) -> bool:
    return cell is not None and cell.isolation.high < 1


def quiet(cell: Cell | None, within: float = NARROW) -> bool:
    return cell is not None and cell.isolation.low <= 1 <= cell.isolation.high and narrow(cell.isolation, within)


def narrow(estimate: Estimate, within: float = NARROW) -> bool:
    return estimate.low >= 1 - within and estimate.high <= 1 + within


def more_harm(measured: Effects, worse: str, better: str) -> Estimate | None:
    """What the victim does beside the one over what it does beside the other."""
    cells, series = measured
    if not {worse, better} <= cells.keys():
        return None
    return series.pair(cells[worse].treatment, cells[better].treatment).factor()


def ordered(guests: Effects, processes: Callable[[], Effects], worse: str, better: str) -> bool:
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
    # The host's disk orders them otherwise or not at all, or guests take the order away, and the intervals show it.
    return outside.low >= 1 or narrow(outside) or inside.low > outside.high


def beside_copies(sandbox: dict[str, Any], seconds: int) -> dict[str, Cell]:
    """A copy in such a sandbox beside one in a guest, called guest, and beside one in a process."""
    copies = {name: {"stressor": "memory-copy", "sandbox": {"backend": b}} for name, b in COPIES.items()}
    return undisturbed(lambda: run(MEMORY, copies, seconds, sandbox)[0], lambda cells: quiet(cells.get("null")))


def memory_shows(inside: dict[str, Cell], seconds: int) -> bool:
    """Whether copying guests hurt each other; or else, whether emulation is what hides it, by all four pairs.

    It is if the host has the effect, between processes, and an emulated guest feels or makes less of it.
    """
    guest = inside.get("guest")
    if guest is None or hurts(guest):
        return guest is not None
    outside = beside_copies({"backend": "process"}, seconds)
    process = outside.get("process")
    if process is None or "process" not in inside or "guest" not in outside:
        return False
    part = guest.baseline_rate.value / process.baseline_rate.value
    print(f"memory bandwidth: not seen between guests. A guest copies {part:.1%} of a process's rate", flush=True)
    print(f"  {summary('a guest beside a process', inside['process'])}", flush=True)
    print(f"  {summary('a process beside a guest', outside['guest'])}", flush=True)
    print(f"  {summary('a process beside a process', process)}", flush=True)
    return Warn.EMULATED in guest.warnings and hurts(process) and guest.isolation.low > process.isolation.high


@bench(
    plants={"idle": "the neighbour on the same CPU does nothing"},
    unjudged="memory bandwidth, and orders among the disk's effects",
    lacking=lacking,
)
def main(options: Options) -> Outcome:
    neighbour = "null" if options.plant else "integer"
    seconds = 15 if options.quick else 90
    within = NARROW_QUICK if options.quick else NARROW
    on_cpu = {"cpu": {"stressor": neighbour, "sandbox": {"cpus": "same"}}}

    def calm(measured: Effects) -> bool:
        return quiet(measured[0].get("null"), within)

    cpu = undisturbed(lambda: run({"probe": "integer"}, on_cpu, seconds), calm)
    for name, cell in cpu[0].items():
        print(summary(name, cell), flush=True)
    disk = undisturbed(lambda: run(DISK, WRITES, 2 * seconds), calm)
    for name, cell in disk[0].items():
        print(summary(f"disk, {name}", cell), flush=True)
    shown = {"CPU": hurts(cpu[0].get("cpu")), "disk": hurts(disk[0].get("direct-128KiB"))}
    nulls = [calm(cpu), calm(disk)]
    if not options.quick:
        memory = beside_copies(GUEST, seconds)
        for name, cell in memory.items():
            print(summary(f"a guest that copies, {name}", cell), flush=True)
        nulls.append(quiet(memory.get("null")))
        shown |= {"memory bandwidth, or why not": memory_shows(memory, seconds)} | orders(disk, seconds)
    said = ", ".join(f"{what}{'' if seen else ' NOT'}" for what, seen in shown.items())
    figure = f"shown: {said}; null quiet in {sum(nulls)} of {len(nulls)}"
    return Outcome(figure, all(shown.values()) and all(nulls))


def orders(disk: Effects, seconds: int) -> dict[str, bool]:
    @functools.cache
    def outside() -> Effects:
        return run(DISK, WRITES, 2 * seconds, {"backend": "process"})

    return {
        "larger requests more, or why not": ordered(disk, outside, "direct-128KiB", "direct-8KiB"),
        "direct most, or why not": ordered(disk, outside, "direct-128KiB", "buffered-128KiB"),
    }


if __name__ == "__main__":
    main()
