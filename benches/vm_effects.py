"""Whether the effects that must appear between guests do, and whether a neighbour that does nothing shows none.

Victims and aggressors in guests of their own: computing on one CPU; copying memory beside memory copying; direct reads
of a disk beside direct and buffered writes of two sizes. Each is judged by its interval.

Bar: sharing a CPU and a disk hurt, with intervals that exclude 1; the null aggressor stays inside its band; memory
bandwidth hurts, or the page says that emulation hides it and how wide its interval was; direct I/O of larger requests
hurts no less than of smaller ones.
"""

from __future__ import annotations

from typing import Any

from common import arguments, conclude, measure
from guests import needed
from partywall.model.finding import Cell

GUEST = {"backend": "qemu"}


def run(victim: dict[str, Any], aggressors: dict[str, Any], seconds: int) -> dict[str, Cell]:
    """Cells by aggressor; the null one is called null."""
    content = {
        "name": "effects",
        "victims": {"victim": victim | {"sandbox": GUEST}},
        "aggressors": {name: {"sandbox": GUEST} | aggressor for name, aggressor in aggressors.items()},
        "min_blocks": 8,
        "precision": 0.005,
        "budget": f"{seconds}s",
    }
    _, findings = measure(content)
    return {cell.aggressor or cell.role: cell for cell in findings.cells}


def told(name: str, cell: Cell | None) -> str:
    if cell is None:
        return f"{name}: not measured"
    factor = cell.isolation
    return f"{name}: isolation factor {factor.value:.3f} ({factor.low:.3f} to {factor.high:.3f})"


def hurts(cell: Cell | None) -> bool:
    return cell is not None and cell.isolation.high < 1


def quiet(cell: Cell | None) -> bool:
    return cell is not None and cell.isolation.low <= 1 <= cell.isolation.high


def main() -> None:
    options = arguments(__doc__ or "")
    needed("vm-effects")
    seconds = 9 if options.quick else 90
    cpu = run({"probe": "integer"}, {"cpu": {"stressor": "integer", "sandbox": GUEST | {"cpus": "same"}}}, seconds)
    memory = run({"probe": "memory-copy"}, {"memory": {"stressor": "memory-copy"}}, seconds)
    file = {"file_bytes": "64MiB"}
    write = {
        name: {"stressor": stressor, "params": {"request_bytes": size} | file, "settle": "100ms"}
        for name, stressor, size in (
            ("direct-8KiB", "disk-direct-write", "8KiB"),
            ("direct-128KiB", "disk-direct-write", "128KiB"),
        )
    }
    disk = run({"probe": "disk-direct-read", "params": {"request_bytes": "8KiB"} | file}, write, seconds)
    nulls = [found.get("null") for found in (cpu, memory, disk)]
    for found in (cpu, memory, disk):
        for name, cell in found.items():
            print(told(name, cell), flush=True)
    if not hurts(memory.get("memory")):
        print("memory bandwidth: not seen; an emulated access takes so long that two guests do not fill the memory bus")
    small, large = disk.get("direct-8KiB"), disk.get("direct-128KiB")
    larger = small is not None and large is not None and large.isolation.value <= small.isolation.high
    met = hurts(cpu.get("cpu")) and hurts(large) and larger and all(map(quiet, nulls))
    seen = [name for found in (cpu, memory, disk) for name, cell in found.items() if name != "null" and hurts(cell)]
    conclude("vm-effects", f"hurt: {', '.join(seen) or 'none'}; null quiet in {sum(map(quiet, nulls))} of 3", met=met)


if __name__ == "__main__":
    main()
