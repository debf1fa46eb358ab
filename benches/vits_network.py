"""The network study of VITS (figure 10) on a link that two tenants share, with a trace beside several sizes.

It is `partywall study papers/vits-network`: a target sends datagrams of 256 bytes flat out, a neighbour datagrams of 0
to 16384 bytes at a fixed rate; in a block every size, and a quiet neighbour, has one slot in random order. After that,
traces of the target's path say between which hops it waits or is lost, and the interfaces' own counters are read
whether as many are gone as the trace says.

Bar: bandwidth at every size known to ± 0.05 of that alone (± 0.25 in the short form), no packet lost by the counters
that the trace does not account for, or the other way. The shape is a finding and not a bar: this is no Xen.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from rich.console import Console

from frame import NotMeasured, Options, Outcome, Plant, bench
from partywall import study
from partywall.core import here
from partywall.core.document.reading import read
from partywall.errors import CapabilityError
from partywall.events import Doing, Event
from partywall.host.label import WORK_ROOT
from partywall.study import page
from partywall.study.document import StudyRequest
from partywall.study.path import slots
from partywall.study.record import StudyDirectory

STUDY = "papers/vits-network"
HALF_MOST, HALF_MOST_QUICK = 0.05, 0.25
QUICK_ROUNDS = 12


@contextlib.contextmanager
def losing_more() -> Iterator[None]:
    """Each look at the interfaces' counters finds 1,000 more lost packets than the one before."""
    gone, more = slots.Bench.gone, itertools.count(0, 1000)
    with mock.patch.object(slots.Bench, "gone", lambda self: gone(self) + next(more)):
        yield


@bench(plants={"counters": Plant("the interfaces' counters lose 1,000 packets more", around=losing_more)})
def main(options: Options) -> Outcome:
    file = study.find(STUDY)
    kind, content = study.kind_of(file), read(file, "study")
    wanted = kind.read(content, str(file))
    request = StudyRequest(rounds=QUICK_ROUNDS) if options.quick else StudyRequest(length="long")
    here.clean_up()
    host = here.this_host()
    try:
        kind.check(wanted, request, host, WORK_ROOT, allow_commands=False)
    except CapabilityError as error:
        raise NotMeasured(str(error)) from error
    with tempfile.TemporaryDirectory() as folder:
        directory = StudyDirectory.create(Path(folder) / "study", content, request, {})
        doing: list[str] = []

        def tell(event: Event) -> None:
            if isinstance(event, Doing) and event.text.partition(", block")[2] not in doing[-1:]:
                doing.append(event.text.partition(", block")[2])
                print(f"  {event.text}", flush=True)

        kind.measure(wanted, directory, host, WORK_ROOT, tell)
        report = study.report(directory)
    page.show(report, Console(width=180))
    figure_10 = report.comparisons[0]
    points = {point.x: point for point in figure_10.measured}
    widest = max((point.high - point.low) / 2 for point in points.values())
    path = report.figures["path"]
    wrong = sum(traced["unexplained"] for traced in path)
    largest = points[max(points)]
    figure = (
        f"beside datagrams of 16384 bytes the target keeps {largest.value:.3f} ({largest.low:.3f} to "
        f"{largest.high:.3f}) of its bandwidth alone, beside 1024 bytes {points[1024.0].value:.3f}; widest interval "
        f"± {widest:.3f}; {wrong} packets lost by the interfaces' counters and not by the trace, or the other way, "
        f"of {sum(traced['way']['sent'] for traced in path)}"
    )
    return Outcome(figure, widest <= (HALF_MOST_QUICK if options.quick else HALF_MOST) and not wrong)


if __name__ == "__main__":
    main()
