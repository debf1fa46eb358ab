"""Whether tools nobody here wrote run in guests as they do elsewhere: fio is measured while it runs, stress-ng presses.

Each is in a guest of its own with a root image of distribution packages, built now if no run has needed it before. fio
reads its own disk directly, and its output is read as it comes; stress-ng computes on the same CPU of the host, on and
off by schedule. Beside it in the long form: memory copying by stress-ng, and a built-in probe as victim.

Bar: fio's rate is more than nothing in every block, and no trial fails; stress-ng on its CPU hurts it with an interval
that excludes 1; stress-ng worked while it was on and not while it was off, by what its own guest counts; the null
neighbour's interval holds 1, and is known to a quarter.
"""

from __future__ import annotations

import time
from typing import Any

from common import measure
from frame import NotMeasured, Options, Outcome, bench
from guests import lacking
from partywall.errors import CapabilityError
from partywall.host import Host
from partywall.run.values.finding import Cell
from partywall.sandbox.qemu import root

PACKAGES = ("fio", "stress-ng")
# fio on an emulated disk is noisy; an interval wider than this would hold 1 whatever there was.
KNOWN = 0.25
GUEST = {"backend": "qemu", "root": list(PACKAGES)}
FIO = (
    "fio --name=victim --filename=partywall-fio.dat --size=16m --rw=randread --bs=8k --direct=1 --thread --time_based "
    "--runtime=1d --output-format=terse --terse-version=3 --status-interval=100ms"
)
KIB_READ = {"csv_column": 5, "kind": "total", "scale": 1024, "unit": "B/s"}


def stress_ng(options: str, **sandbox: Any) -> dict[str, Any]:
    return {"command": f"stress-ng {options} --timeout 0".split(), "settle": "100ms", "sandbox": GUEST | sandbox}


def scenario(*, quick: bool, stress: str) -> dict[str, Any]:
    victims: dict[str, Any] = {"fio": {"command": FIO.split(), "metric": KIB_READ, "sandbox": GUEST}}
    aggressors = {"cpu": stress_ng(stress, cpus="same")}
    if not quick:
        victims["integer"] = {"probe": "integer", "sandbox": {"backend": "qemu"}}
        # It asks for four times what it takes for the cache; of an emulated CPU that is more than a guest's memory.
        aggressors["stream"] = stress_ng("--stream 1 --stream-l3-size 8m")
    return {
        "name": "vm-real-tools",
        "victims": victims,
        "aggressors": aggressors,
        # Several readings a slot, and a guard that leaves out the one a switch cuts in two.
        "timing": {"slot": "600ms", "guard": "100ms"},
        "min_blocks": 8,
        "precision": 0.02,
        "budget": "24s" if quick else "2min",
    }


def summary(cell: Cell) -> str:
    factor = cell.isolation
    name = f"{cell.victim} beside {cell.aggressor or cell.role}"
    return f"{name}: isolation factor {factor.value:.3f} ({factor.low:.3f} to {factor.high:.3f})"


def busy(cell: Cell) -> str:
    if cell.used is None or cell.used_off is None:
        return "how busy stress-ng was is not known"
    return f"stress-ng used {cell.used:.2f} of a CPU while it was on, {cell.used_off:.2f} while it was off"


def worked(cell: Cell) -> bool:
    return cell.used is not None and cell.used_off is not None and cell.used > 0.2 and cell.used_off < 0.05


@bench(plants={"weak": "stress-ng computes for 2 % of the time"}, lacking=lacking)
def main(options: Options) -> Outcome:
    began = time.monotonic()
    try:
        root.build(root.Recipe.of(PACKAGES, Host.here()), lambda text: print(text, flush=True), Host.here())
    except CapabilityError as error:
        raise NotMeasured(str(error)) from error
    print(f"root image: {time.monotonic() - began:.1f} s", flush=True)
    evidence, findings = measure(
        scenario(quick=options.quick, stress="--cpu 1 --cpu-load 2" if options.plant else "--cpu 1")
    )
    of_fio = [seen for trial, seen in evidence.observations.items() if trial.endswith("-fio")]
    rates = [rate for seen in of_fio for rate in seen.rate.tolist()]
    print(f"fio read in {sum(rate > 0 for rate in rates)} of {len(rates)} slots", flush=True)
    for reason in findings.incomplete:
        print(f"failed: {reason}", flush=True)
    for cell in findings.cells:
        print(summary(cell), flush=True)
    mine = {cell.aggressor or cell.role: cell for cell in findings.cells if cell.victim == "fio"}
    cpu, null = mine.get("cpu"), mine.get("null")
    hurt = cpu is not None and cpu.isolation.high < 1
    quiet = null is not None and null.isolation.low <= 1 <= null.isolation.high
    known = null is not None and null.isolation.high - null.isolation.low <= 2 * KNOWN
    figure = "fio in a guest was not measured" if cpu is None else f"{summary(cpu)}; {busy(cpu)}"
    read = bool(rates) and min(rates) > 0 and not findings.incomplete
    return Outcome(figure, read and hurt and quiet and known and cpu is not None and worked(cpu))


if __name__ == "__main__":
    main()
