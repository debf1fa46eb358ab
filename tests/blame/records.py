"""Records of experiments on simulated labs, as one on a host leaves them, and files as a kernel has them."""

from pathlib import Path

import numpy as np

from partywall.blame.corpus.lab import Lab, Neighbour
from partywall.blame.corpus.simulate import PER_SLOT, simulate
from partywall.blame.findings import rule_of
from partywall.blame.job import BlameJob
from partywall.blame.record import Began, BlameRecord, Place, Slot, Stopped

GUILTY = (
    Neighbour(name="/guilty", resource="cpu", effect=0.2, cpu=0.3),
    Neighbour(name="/busy", resource="cpu", cpu=1),
)


def simulated(
    path: Path,
    neighbours: tuple[Neighbour, ...] = GUILTY,
    blocks: int = 16,
    job: BlameJob | None = None,
    unit: str = "lines/s",
    **more: float,
) -> BlameRecord:
    """A record of an experiment of some blocks. more: fields of the lab."""
    lab = Lab.model_validate({"name": "x", "seed": 3, "neighbours": neighbours, "noise": 0.02} | more)
    job, names = job or BlameJob(victim="x", harm=1.0), [each.name for each in neighbours]
    rule = rule_of(job, len(names))
    depths = rule.depths(blocks)
    seen = simulate(lab, len(depths) * PER_SLOT, depths)
    record = BlameRecord.create(path, job, {})
    places = tuple(Place(folder=f"/sys/fs/cgroup{name}", is_v2=True, undo=f"undo {name}") for name in names)
    left_out = ("/init.scope is never touched",)
    record.stream.append(Began(names=tuple(names), places=places, unit=unit, left_out=left_out))
    random = np.random.default_rng(5)
    for at, pulsed in enumerate(depths):
        part = slice(at * PER_SLOT, (at + 1) * PER_SLOT)
        slot = Slot(
            start_ns=at * job.pulse_ns,
            length_ns=job.pulse_ns,
            depths=tuple(pulsed[:-1]),
            ticks=tuple(seen.rate[part]),
            use=tuple(seen.use[part].mean(axis=0)),
            own=float(seen.own[part].mean()),
            steal=float(seen.steal[part].mean()),
            waits={"a CPU": float(seen.beside[part].sum(axis=1).mean()), "a disk": float(random.uniform(0, 0.02))},
        )
        record.stream.append(slot)
    record.stream.append(Stopped(why=rule.ends_by))
    record.end()
    return record


def tree(root: Path, files: dict[str, str]) -> None:
    """Writes files with their folders. files: texts by path below the root."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
