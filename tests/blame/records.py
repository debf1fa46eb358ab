"""Records of experiments on simulated labs, as one on a host leaves them."""

from pathlib import Path

from partywall.blame.corpus.lab import Lab, Neighbour
from partywall.blame.corpus.simulate import PER_SLOT, simulate
from partywall.blame.findings import rule_of
from partywall.blame.job import BlameJob
from partywall.blame.record import BlameDirectory, Slot

GUILTY = (
    Neighbour(name="/guilty", resource="cpu", effect=0.2, cpu=0.3),
    Neighbour(name="/busy", resource="cpu", cpu=1),
)


def simulated(
    path: Path, neighbours: tuple[Neighbour, ...] = GUILTY, blocks: int = 16, **more: float
) -> BlameDirectory:
    """A record of an experiment of some blocks. more: fields of the lab."""
    lab = Lab.model_validate({"name": "x", "seed": 3, "neighbours": neighbours, "noise": 0.02} | more)
    job, names = BlameJob(command="x"), [each.name for each in neighbours]
    depths = rule_of(job, len(names)).depths(blocks)
    seen = simulate(lab, len(depths) * PER_SLOT, depths)
    about = {"started_at": "2026-01-01", **job.facts(), "names": names, "unit": "lines/s", "is_weak": False}
    record = BlameDirectory.create(path, about | {"left_out": ["/init.scope is never touched"]}, {})
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
        )
        record.add(slot)
    record.say("ended", why="precision")
    return record
