"""The study of load generators over the paper's machines: whether each part runs on its own, with one controller.

Network namespaces on a bridge stand for machines: one has the application, one the physical generator, and one each
virtual generator. Each has an sshd and a clock of its own, hours ahead of this host's. This host is the controller:
`partywall study papers/load-generation-netto --machine ROLE=HOST ...` is carried out as a person would, in its shortest
form, with two rounds.

- Before: two machines that cannot be reached are reported together, and nothing is made.
- Where: ssh does not pass the bridge, so all its bytes are the load's. Each machine's share of the bytes that the
  bridge took from generators is its share of the requests on the study's record. Virtual generators that share the
  users of a cell send equal parts.
- Time: the clocks' largest error, as the record states it.
- Findings: every table and figure is measured, but those on CPUs kept for a virtual machine's host and on that host's
  own side; each of their claims has a verdict.
- Nothing is left on any machine.

The short form carries out three cells of 50 users.

Bar: shares within 2 points, parts within 15 % of their mean, clocks within 5 ms, no table or figure missing, nothing
left.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import PARTYWALL
from frame import Options, Outcome, bench
from machines import NEEDS, Machines, machines, run
from papers import undecided_of
from partywall import study as studies
from partywall import units
from partywall.errors import Exit
from partywall.study.agreement import Likeness, judge
from partywall.study.document import StudyReport
from partywall.study.generation.model import Observed
from partywall.study.record import StudyDirectory

NAME = "papers/load-generation-netto"
APPLICATION, PHYSICAL = "application", "physical"
GUESTS = tuple(f"guest-{number}" for number in range(1, 5))
AHEAD_S = {name: 3600 * number for number, name in enumerate((APPLICATION, PHYSICAL, *GUESTS), 1)}
GENERATORS = (PHYSICAL, *GUESTS)
NOT_ELSEWHERE = {"fig 5", "fig 6", "table V", "table VI", "section V"}
"""CPUs kept for the host, and the host's side: the hosts of sandboxes on other machines are not read."""
SHARE_BAR, PART_BAR, CLOCK_BAR_NS = 0.02, 0.15, 5_000_000


def partywall(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [*PARTYWALL, "study", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def options(made: Machines, physical: str = PHYSICAL, sandboxes: Sequence[str] = GUESTS) -> list[str]:
    pairs = [("application", APPLICATION), ("physical", physical), *(("sandbox", each) for each in sandboxes)]
    given = [word for role, host in pairs for word in ("--machine", f"{role}={host}")]
    return [*given, "--address", made.address(APPLICATION), "--work-dir", str(made.work_root)]


def fewer_cells(folder: Path) -> str:
    """The study with three cells, as a file: 50 users with compression, on the physical machine, one guest and two."""
    lines = studies.find(NAME).read_text("utf-8").splitlines()
    left_out = ("compress:", "kept:", "sandboxes: 4")
    kept = [
        line
        for line in lines
        if "{generator:" not in line or ("users: 50" in line and not any(key in line for key in left_out))
    ]
    file = folder / "few.yaml"
    file.write_text("\n".join(kept))
    return str(file)


def refused(made: Machines, out: Path) -> bool:
    """Whether machines that cannot be reached are reported, all at once, before anything is made."""
    said = partywall(NAME, *options(made, physical="closed-1", sandboxes=("closed-2",)), "--out", str(out))
    named = all(f"closed-{number}, by ssh" in said.stderr for number in (1, 2))
    print(f"exit code {said.returncode}: {said.stderr.strip()}", flush=True)
    return said.returncode == Exit.CAPABILITY and named and not out.exists() and not made.left()


def taken(made: Machines) -> dict[str, int]:
    """Bytes that the bridge has taken from each generator's machine so far."""
    within = made.on_switch()
    return {name: int(run(*within, "cat", f"/sys/class/net/{name}/statistics/rx_bytes")) for name in GENERATORS}


def shares(counts: Mapping[str, int]) -> dict[str, float]:
    return {name: count / max(1, sum(counts.values())) for name, count in counts.items()}


def unequal(observations: Sequence[Observed]) -> float:
    """The largest difference of a generator's part from the mean part, over all rounds of a cell."""
    parts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for observed in observations:
        parts[observed.cell.id].update(observed.sent)
    means = {cell: sum(each.values()) / len(each) for cell, each in parts.items()}
    return max(abs(count / means[cell] - 1) for cell, each in parts.items() for count in each.values())


def strays(observations: Sequence[Observed]) -> list[str]:
    """Cells whose requests did not come from the machines that they should come from."""
    wrong = []
    for observed in observations:
        physical = observed.cell.generator == "physical"
        wanted = {PHYSICAL} if physical else set(GUESTS[: observed.cell.sandboxes])
        if {name for name, count in observed.sent.items() if count} != wanted:
            wrong.append(observed.cell.id)
    return wrong


@dataclass(frozen=True)
class Carried:
    """The study as it was carried out. taken: bytes that the bridge took from each generator's machine meanwhile."""

    observations: Sequence[Observed]
    report: StudyReport
    taken: Mapping[str, int]
    refused: bool
    left: Sequence[str]


def carry_out(*, quick: bool) -> Carried:
    with machines((), AHEAD_S) as made, tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        out = Path(folder) / "study"
        is_refused = refused(made, out)
        study = fewer_cells(Path(folder)) if quick else NAME
        before = taken(made)
        said = partywall(study, *options(made), "--rounds", "2", "--out", str(out))
        print(said.stdout[-4000:], said.stderr[-2000:], sep="\n", flush=True)
        moved = {name: after - before[name] for name, after in taken(made).items()}
        left = made.left()
        if said.returncode != Exit.HOLDS:
            return Outcome(f"the study ended with exit code {said.returncode}", False)
        record = StudyDirectory.open(out)
        observations = [Observed.model_validate(line) for line in record.observations()]
        return Carried(observations, studies.report(record), moved, is_refused, left)


def swapped(observed: Observed) -> Observed:
    """An observation that names the first guest's machine for the physical one's, and the other way round."""
    names = {PHYSICAL: GUESTS[0], GUESTS[0]: PHYSICAL}
    return observed.model_copy(update={"sent": {names.get(name, name): n for name, n in observed.sent.items()}})


def apart(carried: Carried, observations: Sequence[Observed]) -> float:
    """The largest difference between a machine's share of the bridge's bytes and its share of the requests."""
    sent: Counter[str] = Counter()
    for observed in observations:
        sent.update(observed.sent)
    by_bytes, by_requests = shares(carried.taken), shares(sent)
    for name in GENERATORS:
        print(f"{name:9} {carried.taken[name]} bytes ({by_bytes[name]:.1%}), {sent[name]} requests", flush=True)
    return max(abs(by_bytes[name] - by_requests.get(name, 0.0)) for name in GENERATORS)


@bench(
    plants={"swapped": "the record names the first guest's machine for the physical one's"},
    unjudged="verdicts of claims",
    needs=NEEDS,
)
def main(given: Options) -> Outcome:
    carried = carry_out(quick=given.quick)
    observations = [swapped(each) if given.plant else each for each in carried.observations]
    comparisons = carried.report.comparisons
    unknown = {each.table.id for each in comparisons if judge(each).likeness is Likeness.MISSING}
    # Most claims compare cells that the short form leaves out.
    missing = [] if given.quick else [f"{name} has no verdict" for name in sorted(unknown - NOT_ELSEWHERE)]
    missing += [problem for each in comparisons for problem in undecided_of(each)]
    wrong = strays(observations)
    for problem in (*missing, *(f"{cell}: its requests came from other machines" for cell in wrong)):
        print(f"problem: {problem}")
    share, part = apart(carried, observations), unequal(observations)
    clock_ns = max(observed.clock_error_ns or 0 for observed in observations)
    figure = (
        f"{len(observations)} cells from {len(GENERATORS)} machines, shares within {100 * share:.1f} points of the "
        f"bridge's, parts within {part:.1%} of their mean, clocks within {units.format_duration(clock_ns)}; "
        f"{len(comparisons) - len(unknown)} tables and figures compared, {len(missing)} missing; "
        f"closed machines {'are' if carried.refused else 'are NOT'} refused; "
        f"{'nothing is' if not carried.left else f'{carried.left} IS'} left"
    )
    met = share <= SHARE_BAR and part <= PART_BAR and clock_ns <= CLOCK_BAR_NS and carried.refused
    return Outcome(figure, met and not (wrong or missing or carried.left))


if __name__ == "__main__":
    main()
