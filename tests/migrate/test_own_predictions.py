"""What is known, and predicted, of a guest of the user's own that nothing is tried out on."""

import math

import numpy as np
import pytest
from rich.console import Console

from partywall.agent.catalogue import shipped
from partywall.errors import Exit, TrialError, UsageError
from partywall.events import Left, silent
from partywall.migrate import check as plans
from partywall.migrate import known
from partywall.migrate.capability import Migrations
from partywall.migrate.document import Method, Move, MoveFinding, Progress, Survey
from partywall.migrate.findings import cost, own, prediction
from partywall.migrate.findings.prediction import Curve, Facts
from partywall.migrate.job import MigrationJob
from partywall.migrate.measure import resident, watching
from partywall.migrate.measure.end import Memory
from partywall.migrate.record import CALIBRATION, MigrationDirectory

MIB, MS = 1 << 20, 1_000_000
SIZE = 256 * MIB - 128 * 1024
ABOUT = {
    "memory_bytes": SIZE, "qemu": "7.2.0", "emulated": True, "started_at": "2026-11-27T00:00:00+00:00",
    "defaults": {"max-bandwidth": 128 * MIB, "downtime-limit": 300},
}  # fmt: skip
PLAN = """
partywall_migration: 1
name: {name}
hosts: {{a: {{qmp: {a}, address: one}}, b: {{qmp: {b}, address: two}}}}
{rest}
"""


def plan(rest="link: {rate: 400Mbit/s}", name="web", a="/run/a", b="/run/b"):
    return plans.loads(PLAN.format(rest=rest, name=name, a=a, b=b).encode(), "plan.yaml", shipped())


class Guest:
    """A hypervisor that tells a rate of MiB/s for each window, after some questions."""

    def __init__(self, rates, file=None, late=2):
        self.rates, self.file, self.late, self.asked, self.begun = dict(rates), file, late, 0, []

    def in_use(self):
        return Memory(SIZE, 100 * MIB, 75 * MIB, "resident in its QEMU's process", 4096, self.file)

    def begin_sampling(self, seconds):
        self.begun.append(seconds)
        self.asked = 0

    def dirty_rate(self):
        self.asked += 1
        return self.rates[self.begun[-1]] if self.asked > self.late else None


def looked_at(rates=((1, 8), (2, 8), (4, 8)), content=100 * MIB):
    memory = Memory(SIZE, content, round(content * 0.75), "resident in its QEMU's process", 4096)
    return watching.survey_of_rates("guest", memory, tuple(rate for _, rate in rates))


def moved(number=0, method="default", rate=45 * MIB, downtime_ms=60, *, paused=True):
    """A move of 90 MiB of content among zero pages."""
    begin, content = 1000 * MS, 90 * MIB
    spent_ms = round(content / rate * 1000)
    looks = tuple(
        Progress(
            at_ns=begin + 100 * MS + at * spent_ms * MS // 30, sent=content * at // 30 + 1, passes=1,
            left=SIZE - SIZE * at // 30, rate=rate * (1 + at / 1000),
        )
        for at in range(31)
    )  # fmt: skip
    end = begin + (100 + spent_ms + downtime_ms) * MS
    return Move(
        workload="guest", method=method, round=0, number=number, source="a", outcome="completed", begin_ns=begin,
        end_ns=end, setup_ns=100 * MS, downtime_ns=downtime_ms * MS, total_ns=(100 + spent_ms + downtime_ms) * MS,
        paused_ns=end - downtime_ms * MS if paused else None, resumed_ns=end + 40 * MS if paused else None,
        progress=looks,
        memory={"transferred": content, "dirty-sync-count": 2, "duplicate": 40_000, "downtime-bytes": 0},
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(watching.time, "sleep", lambda _: None)


def test_a_hypervisor_is_asked_in_windows_and_the_time_left_is_shown():
    guest, left = Guest({1: 8, 2: 7, 4: 7}), []
    survey = watching.watched(
        "guest", guest, lambda _: pytest.fail("there is no file"),
        lambda event: left.append(event.seconds) if isinstance(event, Left) else None,
    )  # fmt: skip
    assert guest.begun == [1, 2, 4]
    assert left == sorted(left, reverse=True)
    assert survey.windows_ns == (1_000 * MS, 2_000 * MS, 4_000 * MS)
    assert survey.changed[0] == pytest.approx((8.5 * MIB, 15 * MIB, 30 * MIB))
    assert (survey.content, survey.content_least) == (100 * MIB, 75 * MIB)
    # 4096 of 65504 pages were looked at: some 130 of them changed in a second.
    assert survey.errors[0] == pytest.approx(0.75 * MIB, rel=0.2)


def test_the_pages_of_a_file_are_counted_instead(tmp_path):
    counted = looked_at()
    guest = Guest({}, file=tmp_path / "memory")
    assert watching.watched("guest", guest, lambda file: counted if file == guest.file else None, silent) is counted
    assert not guest.begun


def test_a_hypervisor_that_never_tells_is_given_up(monkeypatch):
    monkeypatch.setattr(watching, "LATE_S", -1.0)
    with pytest.raises(TrialError, match="does not tell its dirty rate"):
        watching.watched("guest", Guest({1: 0}, late=5), lambda _: None, silent)


SMAPS = """\
55a73b6a9000-55a73c582000 rw-p 00000000 00:00 0                          [heap]
Size:              15204 kB
KernelPageSize:        4 kB
Rss:                4108 kB
{begin}-{end} {rights} 00000000 00:01 99 {path}
Size:             262016 kB
KernelPageSize:        {page} kB
MMUPageSize:           4 kB
Rss:              102528 kB
Swap:                 72 kB
VmFlags: rd wr mr mw me dc ac
7fa150000000-7fa18ffff000 rwxp 00000000 00:00 0
Rss:                2048 kB
"""
SPAN = {"begin": "7fa138000000", "end": "7fa147fe0000"}


def test_the_memory_of_a_guest_is_found_among_the_mappings_of_its_qemu(tmp_path):
    text = SMAPS.format(**SPAN, rights="rw-p", path="", page=4)
    assert resident.area(text, SIZE) == resident.Area(102600 * 1024, 0x7FA138000000)
    assert resident.area(text, SIZE + 4096) is None
    huge = text.replace("Rss:              102528 kB", "Rss: 0 kB\nPrivate_Hugetlb:  102528 kB")
    assert resident.area(huge, SIZE).resident == 102600 * 1024
    assert resident.area("", SIZE) is None
    assert resident.area(text + text, SIZE) is None, "two of this size, of which one may be something else"
    # Shared memory is read itself, if the file holds it and nothing else.
    file = tmp_path / "{begin}-{end}".format(**SPAN)
    with file.open("wb") as stream:
        stream.truncate(SIZE)
    shared = SMAPS.format(**SPAN, rights="rw-s", path="/memfd:ram (deleted)", page=4)
    assert resident.area(shared, SIZE, tmp_path).file == file
    assert resident.area(shared, SIZE).file is None, "on another machine"
    huge = shared.replace("KernelPageSize:        4", "KernelPageSize:     2048")
    assert resident.area(huge, SIZE, tmp_path).file is None
    with file.open("r+b") as stream:
        stream.truncate(SIZE + 4096)
    assert resident.area(shared, SIZE, tmp_path).file is None


def test_the_layout_is_that_of_pages_with_memory_of_their_own(tmp_path):
    entries = np.zeros(SIZE // 4096, np.uint64)
    present, own, swapped = (np.uint64(1 << bit) for bit in (63, 56, 62))
    entries[:512] = present | own
    entries[-128:] = swapped
    # A page that was only read is the kernel's page of zeros.
    entries[1024:2048] = present
    (tmp_path / "pagemap").write_bytes(b"\0" * 8 * 3 + entries.tobytes())
    layout = resident._layout(tmp_path / "pagemap", 3 * 4096, SIZE)
    assert sum(layout) == 640 * 4096
    assert sum(layout[:2]) == 512 * 4096
    assert layout[-1] == 128 * 4096


def test_within_the_shortest_window_a_curve_is_between_its_chord_and_its_tangent():
    in_turn = Curve((1.0, 2.0, 4.0), np.array([[8.0, 16.0, 32.0]]), early=1.0)
    assert in_turn.at(0.5) == pytest.approx(4.0)
    full = Curve((1.0, 2.0, 4.0), np.array([[16.0, 16.0, 16.0]]))
    assert full.at(0.5) == pytest.approx(8.0)
    assert Curve(full.windows_s, full.changed, early=1.0).at(0.5) == pytest.approx(16.0)
    assert Curve(full.windows_s, full.changed, early=1.0).at(1.5) == pytest.approx(16.0)


def test_a_sampled_curve_varies_as_its_samples_do_and_never_falls():
    curve = Curve((1.0, 2.0, 4.0), np.array([[8.0, 8.0, 8.0]]), errors=(1.0, 1.0, 1.0))
    chance = np.random.default_rng(1)
    drawn = [curve.draw(chance) for _ in range(400)]
    assert np.std([each.changed[0, 0] for each in drawn]) == pytest.approx(1.0, rel=0.15)
    assert all((np.diff(each.changed[0]) >= 0).all() for each in drawn)
    assert {bool(each.early) for each in drawn} == {True}


def test_a_content_that_is_known_between_two_makes_intervals_wider():
    fixed = own.assumed(50e6, SIZE)
    curve = Curve((1.0,), np.zeros((1, 1)))
    exact, wide = (
        prediction.predict(Facts(SIZE, 100 * MIB, math.inf, curve=curve, content_least=least), fixed, Method(), 60)
        for least in (None, 50 * MIB)
    )
    assert wide.spans["sent_bytes"].low < 0.7 * exact.spans["sent_bytes"].low
    assert wide.spans["sent_bytes"].high < exact.spans["sent_bytes"].high * 1.02


def test_limits_that_a_hypervisor_has_count_where_a_method_sets_none():
    facts = Facts(SIZE, 100 * MIB, 100e6, bandwidth=10e6, downtime_s=2.0)
    assert prediction.rate_of(facts, Method()) == 10e6
    assert prediction.rate_of(facts, Method(bandwidth="160Mbit/s")) == 20e6
    assert prediction.limit_of(facts, Method()) == 2.0


def test_costs_are_those_of_earlier_moves_and_assumed_where_these_do_not_tell():
    assert own.fixed_costs([], None, SIZE) is None
    told = own.fixed_costs([], 50e6, SIZE)
    assert 0.75 * 50e6 < min(told.rates) < max(told.rates) < 50e6
    seen = [MoveFinding(move=moved(), values={"total_s": 2.2})]
    (one,) = (own.fixed_costs(seen, 999e6, SIZE),)
    assert one.rates[1] == pytest.approx(45 * MIB, rel=0.02), "what was seen counts more than what is stated"
    assert len(one.rates) == 3, "one move does not tell how much costs vary"
    assert one.waited_s == told.waited_s, "nobody watched its clients"
    with_clients = [MoveFinding(move=moved(), values={"clients_s": 0.1, "start_s": 0.05})] * 3
    three = own.fixed_costs(with_clients, None, SIZE)
    assert three.waited_s == pytest.approx([0.04] * 3)


def simple_record(path, requested, moves=(), survey=None, earlier=(), about=ABOUT, *, advises=False):
    made = MigrationDirectory.create(path, MigrationJob(plan=requested, only_advise=advises), {})
    made.learn(**about)
    for move in earlier:
        made.append(move, {}, CALIBRATION)
    if survey:
        made.add_survey(survey)
    for move in moves:
        made.append(move, {})
    made.end()
    return made


def test_a_report_says_what_a_prediction_rests_on_and_what_came(tmp_path):
    kind = Migrations()
    result = kind.findings(simple_record(tmp_path / "one", plan(), [moved()], looked_at()))
    (cell,) = result.findings.cells
    assert (cell.workload, cell.method) == ("guest", "default")
    spans = cell.prediction.spans
    assert spans["total_s"].low < 2.3 < spans["total_s"].high
    assert spans["total_s"].high - spans["total_s"].low > 0.5, "much is assumed"
    assert cell.measured["total_s"].n == 1
    assert "75 MiB to 100 MiB of content" in result.findings.notes[0]
    assert "the stated link of 400 Mbit/s, and on assumed costs" in result.findings.rests_on
    page = kind.files().documents["html"][1](result)
    assert result.findings.rests_on in page
    assert "moves of the idle guest" not in page
    assert "never" not in page[page.index('id="moves"') : page.index('id="reading"')], "nobody asked this guest"


def test_earlier_moves_make_predictions_narrower(tmp_path):
    spans = []
    for count in (0, 3):
        earlier = [moved(-number - 1, "pre-copy", (45 + number) * MIB) for number in range(count)]
        made = simple_record(tmp_path / str(count), plan(), [], looked_at(), earlier)
        findings = Migrations().findings(made).findings
        spans.append(findings.cells[0].prediction.spans["total_s"])
        assert ("3 earlier moves" in findings.rests_on) == (count == 3)
    assert spans[1].high - spans[1].low < spans[0].high - spans[0].low


def test_without_a_rate_it_is_said_why_nothing_is_predicted(tmp_path):
    kind = Migrations()
    made = simple_record(tmp_path / "one", plan(rest=""), [], looked_at(), advises=True)
    result = kind.findings(made)
    assert kind.outcome(result) == Exit.INCONCLUSIVE
    assert "add link: {rate:" in result.findings.headline
    assert "Over less than 71.3 Mbit/s" in result.findings.headline
    after = kind.findings(simple_record(tmp_path / "two", plan(rest=""), [moved()], looked_at()))
    assert any("cannot be predicted" in note for note in after.findings.notes)
    assert after.findings.cells[0].prediction is None
    assert "of an unknown rate" in kind.files().documents["html"][1](after)


def test_advice_for_a_guest_of_one_s_own_needs_no_move(tmp_path):
    kind = Migrations()
    fits = plan("link: {rate: 400Mbit/s}\nclients: {address: 10.0.0.5}\ngoal: {downtime: 2s}")
    made = simple_record(tmp_path / "one", fits, [], looked_at(), advises=True)
    result = kind.findings(made)
    assert kind.outcome(result) == Exit.HOLDS
    assert "reaches the goal" in result.findings.advice[0].text
    console = Console(width=200, record=True)
    kind.files().show(result, console)
    assert "advice for guest" in console.export_text()
    slow = plan("link: {rate: 40Mbit/s}")
    result = kind.findings(simple_record(tmp_path / "two", slow, [], looked_at(), advises=True))
    assert kind.outcome(result) == Exit.VIOLATED
    assert "no pre-copy is likely to end" in result.findings.advice[0].text


def test_earlier_moves_are_those_of_the_same_guest_between_the_same_hosts(tmp_path):
    runs = tmp_path / "runs"
    runs.mkdir()
    for number, requested in enumerate((plan(), plan(a="/run/c", b="/run/d"), plan(name="db"), plan(rest=""))):
        simple_record(runs / str(number), requested, [moved()])
    fits = known.earlier_moves(plan(), ABOUT, None, runs)
    assert [earlier.move.number for earlier in fits] == [-1, -2], "monitors change with each move"
    assert {earlier.move.method for earlier in fits} == {"pre-copy"}
    assert fits[0].finding().values["total_s"] > 2
    assert not known.earlier_moves(plan(), {**ABOUT, "memory_bytes": 1}, None, runs)
    one = known.earlier_moves(plan(), ABOUT, runs / "0", runs)
    assert len(one) == 1
    for number, why in (("2", "its plan is db"), ("3", "its link is not that of the plan")):
        with pytest.raises(UsageError, match=why):
            known.earlier_moves(plan(), ABOUT, runs / number, runs)


def test_a_move_that_its_own_limit_held_back_does_not_tell_what_the_link_carries(tmp_path):
    limited = plan("link: {rate: 400Mbit/s}\nmethods: {slow: {bandwidth: 380Mbit/s}}")
    runs = tmp_path / "runs"
    runs.mkdir()
    simple_record(runs / "one", limited, [moved(method="slow")])
    assert not known.earlier_moves(plan(), ABOUT, None, runs)
    assert known.earlier_moves(limited, ABOUT, None, runs), "it does for moves with the same limit"
    squeezed = plan("link: {rate: 400Mbit/s}\nmethods: {x: {xbzrle: true}}")
    simple_record(runs / "two", squeezed, [moved(method="x")])
    assert not known.earlier_moves(plan(), ABOUT, None, runs), "its bytes are not those of pages"


def test_a_guest_that_changes_too_much_is_said_to_be_cancelled():
    survey = looked_at(((1, 80), (2, 80), (4, 60)), content=240 * MIB)
    facts = Facts(SIZE, survey.content, math.inf, curve=cost._curve(survey))
    forecast = prediction.predict(facts, own.assumed(50e6, SIZE), Method(), 20)
    assert "not expected to end within 20 s" in cost.in_words(forecast, 20_000 * MS)
    calm = prediction.predict(Facts(SIZE, 60 * MIB, math.inf), own.assumed(50e6, SIZE), Method(), 60)
    assert "the guest is away for" in cost.in_words(calm, 60_000 * MS)


def test_a_job_for_advice_needs_no_calibration(tmp_path):
    file = tmp_path / "plan.yaml"
    file.write_text(PLAN.format(rest="", name="web", a="/run/a", b="/run/b"))
    assert MigrationJob.parsed({"plan": str(file), "only_advise": True}).only_advise
    assert isinstance(looked_at(), Survey)
