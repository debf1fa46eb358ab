"""A watch on a simulated clock: what its record has, what it costs over days, and what an interruption leaves."""

import contextlib
import io
import json
import os
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from partywall import kinds
from partywall.cli.execution import carry_out
from partywall.cli.live import NAME, Watching, short
from partywall.core.capability import Options
from partywall.errors import Exit, UsageError
from partywall.events import Note, Seen, Started, silent
from partywall.kinds.journal import Journal
from partywall.testing.hosts import fake_host
from partywall.watch.capability import Watches
from partywall.watch.charts import _parts
from partywall.watch.findings import SPANS_SHOWN
from partywall.watch.job import WatchJob
from partywall.watch.measure import watching
from partywall.watch.measure.reading import Snapshot
from partywall.watch.measure.waits import Waits
from partywall.watch.prometheus import USES_KEPT, USES_WRITTEN, Totals
from partywall.watch.record import HOST, UNKNOWN, USES_MAX, Disk, Period, Span, Use, WatchRecord
from partywall.watch.report import headline, live

FILES = Watches().files()

SECOND = 10**9
HOUR = 3600


class Clock:
    """Time passes only while somebody waits, and at most until `until_s`."""

    def __init__(self, until_s=10**9):
        self.ns, self.until_ns = 0, until_s * SECOND

    def now_ns(self):
        return self.ns

    def sleep_until(self, deadline_ns):
        if deadline_ns > self.until_ns:
            raise KeyboardInterrupt
        self.ns = max(self.ns, deadline_ns)


class Reader:
    """A disk with a reader, and a writer that makes it slow at the times in `slow_s`."""

    disks = ("sda",)
    tenants = ("/reader", "/writer")
    lost = ()

    def __init__(self, slow_s=(), tenants=1):
        self._slow_s, self._more = slow_s, tenants
        self._sums = [0] * 11
        self._uses = {}
        self._at_s = 0
        self._known = frozenset(["/writer", *(f"/reader{number or ''}" for number in range(tenants))])

    def lacks(self):
        return iter(("a counter; boot with it",))

    def gone(self):
        gone, self.lost = self.lost, ()
        return gone

    def look(self, now_ns): ...

    def read(self, now_ns):
        while self._at_s < now_ns // SECOND:
            self._at_s += 1
            writes = 900 if self._at_s in self._slow_s else 0
            self._sums[0] += 100
            self._sums[2] += 800
            self._sums[3] += 100 * (50 if writes else 1)
            self._sums[4] += writes
            self._sums[6] += 8 * writes
            self._sums[7] += 60 * writes
            self._sums[9] += 1000 if writes else 300
            for number in range(self._more):
                self._add(f"/reader{number or ''}", 100, 100 * 4096, 0)
            if writes:
                self._add("/writer", writes, 0, 4096 * writes)
        return Snapshot(
            now_ns, {"sda": list(self._sums)}, frozenset({"sda"}), dict(self._uses), {"": now_ns // 2}, self._known
        )

    def _add(self, tenant, *counts):
        before = self._uses.get((tenant, "sda"), (0, 0, 0))
        self._uses[tenant, "sda"] = tuple(a + b for a, b in zip(before, counts, strict=True))


def watches(clock, reader, wall_ns=10**18):
    """Watches of a simulated host."""
    return Watches(lambda *_: reader, clock, lambda: wall_ns + clock.ns)


@pytest.fixture
def watched(tmp_path):
    """Watches a simulated host; returns the record and the events."""

    def make(for_s=None, reader=None, until_s=10**9, limit_ns=None):
        events = []
        job = WatchJob(for_ns=None if for_s is None else for_s * SECOND, limit_ns=limit_ns)
        options = Options(fake_host(), tmp_path / "watch")
        try:
            watches(Clock(until_s), reader or Reader()).begin(job, options, events.append)
        except KeyboardInterrupt:
            events.append("interrupted")
        return WatchRecord.open(tmp_path / "watch"), events

    return make


def test_a_slow_disk_is_said_twice_and_stored_once(watched):
    record, events = watched(300, Reader(range(200, 230)))
    began, ended = [event.text for event in events if isinstance(event, Note) and "sda" in event.text]
    assert "sda has been slow for 3 s: reads take 50 ms (usually 1 ms); busy 100 %" in began
    assert "sda was slow for 30 s: reads took 50 ms" in ended
    assert "Likely neighbour: /writer. Shares: /writer 90 % of operations, 90 % of bytes; /reader 10 %" in ended
    findings = Watches().findings(record)
    (slow,) = findings.slow
    assert (slow.length_ns, slow.neighbour.tenant, findings.ended) == (30 * SECOND, "/writer", True)
    assert headline(findings) == "Watched for 5 min: sda was slow 1 time, 30 s in all"
    assert Watches().outcome(findings) is Exit.HOLDS


def test_a_watch_that_is_too_short_to_judge_a_saturated_disk_is_inconclusive(watched):
    record, _ = watched(20, Reader(range(1, 30)))
    findings = Watches().findings(record)
    (disk,) = findings.whole.disks
    assert disk.saturated_ns == disk.unjudged_ns == 20 * SECOND
    assert headline(findings) == "Watched for 20 s: sda could not be judged"
    assert Watches().outcome(findings) is Exit.INCONCLUSIVE
    (said,) = [note for note in Watches().report(findings).notes if "judged" in note]
    assert "its usual latency was not known yet" in said
    assert "--latency" in said
    assert "watch longer" in said
    assert said in page(findings)


@pytest.mark.parametrize(
    ("for_s", "slow_s", "limit_ns"),
    [(20, (), None), (20, range(1, 30), 10**9), (300, [*range(1, 5), *range(200, 202)], None)],
    ids=["never saturated", "a limit", "later it is known"],
)
def test_a_disk_that_could_be_judged_was_not_slow(watched, for_s, slow_s, limit_ns):
    record, _ = watched(for_s, Reader(slow_s), limit_ns=limit_ns)
    findings = Watches().findings(record)
    assert headline(findings).endswith(": no disk was slow")
    assert Watches().outcome(findings) is Exit.HOLDS


def page(findings):
    _, render = FILES.documents["html"]
    return render(findings)


class Lately(Reader):
    """Processes are read every second period only, and two tenants asked for more than the disk did."""

    def read(self, now_ns):
        snapshot = super().read(now_ns)
        second = now_ns // SECOND
        is_read = second % 2 == 0
        self._asked = 400 * 4096 * second if is_read else self._asked
        uses = {("/a", HOST): (0, self._asked, 0), ("/b", HOST): (0, self._asked // 800, 0)}
        unread = frozenset() if is_read else frozenset({"sda"})
        return replace(
            snapshot, counted=frozenset(), uses=uses, tenants=frozenset({"/a", "/b", UNKNOWN}), unread=unread
        )


def test_bytes_of_processes_are_compared_with_what_disks_did_in_the_same_time(watched):
    record, events = watched(10, Lately())
    spans = list(record.spans())
    assert [span.length_ns // SECOND for span in spans] == [2] * 5
    totals = Totals()
    for event in events:
        if isinstance(event, Seen):
            totals.add(event.value)
    table = [line for line in totals.text().splitlines() if line.startswith("partywall_watch_tenant_read_bytes_total")]
    assert sum(int(line.split()[-1]) for line in table) == 10 * 100 * 4096
    assert any(f'tenant="{UNKNOWN}"' in line for line in table)
    assert 'partywall_watch_read_bytes_total{disk="sda"} 4096000' in totals.text()


def test_every_table_says_at_most_and_its_sum_is_never_more_than_the_disks(watched):
    record, _ = watched(10, Lately())
    findings = Watches().findings(record)
    console = Console(file=io.StringIO(), width=200)
    FILES.show(findings, console)
    said = console.file.getvalue()
    assert "at most 400 KiB/s" in said
    assert "note: at most: the kernel counts only the bytes that a tenant's processes ask for" in said
    assert "at most 400 KiB/s" in page(findings)
    rows = FILES.rows(findings)
    disk = next(row for row in rows if row["tenant"] == "all")
    tenants = [row for row in rows if row["tenant"] != "all"]
    assert {row["tenant"] for row in tenants} == {"/a", "/b", UNKNOWN}
    assert sum(row["read_bps"] for row in tenants) == pytest.approx(disk["read_bps"])
    assert all(row["at_most"] and row["read_bps"] <= row["read_bps_most"] <= disk["read_bps"] for row in tenants)
    record.settle()
    table = pq.read_table(record.path / "tenants.parquet").to_pylist()
    disks = pq.read_table(record.path / "disks.parquet").to_pylist()
    assert sum(row["read_bytes"] for row in table) == sum(row["read_bytes"] for row in disks)
    assert all(row["at_most"] for row in table)


def test_the_tables_on_a_terminal_are_of_the_same_time(watched, monkeypatch):
    _, events = watched(10, Lately())
    console = Console(file=io.StringIO(), width=200, force_terminal=True)
    monkeypatch.setattr(Watching, "DRAW_S", 0.0)
    drawn = []
    with Watching(console, live, "watching", ends=False) as view:
        monkeypatch.setattr(view._live, "update", lambda text, **_: drawn.append(text.plain))
        for event in events:
            view(event)
    assert len(drawn) == 5
    for text in drawn:
        lines = text.splitlines()
        assert next(line for line in lines if line.startswith("sda")).split()[3:5] == ["400", "KiB/s"]
        assert next(line for line in lines if line.startswith("/a")).split()[3:7] == ["at", "most", "400", "KiB/s"]


def test_areas_of_a_chart_add_up_to_what_the_disk_did_and_are_not_scaled(watched):
    record, _ = watched(10, Lately())
    # Of what the disk did, /b asked for half a percent, and /a for four times as much as there is.
    for span in record.spans():
        areas = _parts(span, span.disks[0], ["/a", "/b"])
        assert sum(areas.values()) == pytest.approx(1)
        assert {name: round(area, 9) for name, area in areas.items() if area > 1e-9} == {"/a": 0.995, UNKNOWN: 0.005}


def test_long_names_that_differ_at_their_end_stay_different_while_it_watches():
    names = [f"/service/9cc1{'0' * 40}{end}" for end in ("a", "b")]
    assert len({short(name) for name in names}) == 2
    assert all(len(short(name)) <= NAME for name in names)


def test_a_tenant_that_is_gone_is_said_once(watched):
    reader = Reader()
    reader.lost = ("db: process 7 has ended",)
    _, events = watched(5, reader)
    assert [e.text for e in events if isinstance(e, Note) and "db" in e.text] == ["db: process 7 has ended"]


def test_a_stated_limit_decides_the_exit_code(watched):
    record, _ = watched(20, Reader(range(5, 15)), limit_ns=20 * 10**6)
    assert Watches().outcome(Watches().findings(record)) is Exit.VIOLATED


def test_the_record_adds_up_to_what_the_disk_did(watched):
    record, _ = watched(100)
    whole = Watches().findings(record).whole
    assert (whole.disks[0].reads, whole.length_ns) == (10_000, 100 * SECOND)
    assert (whole.uses[0].operations, whole.waited_ns) == (10_000, {"": 50 * SECOND})
    record.settle()
    assert {file.stem for file in record.path.glob("*.parquet")} == {"disks", "tenants", "waits", "pairs"}


def test_tables_are_of_all_lines_also_if_the_clock_was_set_back(watched):
    """Lines that were added after the clock was set back looked older than the tables, which lacked them for ever."""
    record, _ = watched(20)
    lines, table = record.path / record.LINES, record.path / "disks.parquet"
    whole = lines.read_bytes()
    lines.write_bytes(b"".join(whole.splitlines(keepends=True)[:-5]))
    record.settle()
    fewer = pq.read_metadata(table).num_rows
    lines.write_bytes(whole)
    os.utime(lines, (1, 1))
    record.settle()
    assert pq.read_metadata(table).num_rows > fewer
    made = table.stat().st_ino
    record.settle()
    assert table.stat().st_ino == made, "tables of the same lines are not written again"


@pytest.mark.long
def test_a_record_of_days_stays_small_and_keeps_single_periods_of_slow_times(watched):
    record, _ = watched(30 * HOUR, Reader(range(100_000, 100_030)))
    lengths = [span.length_ns // SECOND for span in record.spans()]
    assert sum(lengths) == 30 * HOUR
    # 1, 2, 4 and 8 hours of 3600 spans each, and a part of the next.
    assert len(lengths) < 5 * watching.SPANS
    assert lengths[0] == 1
    assert max(lengths) == 16
    (slow,) = Watches().findings(record).slow
    inside = [s for s in record.spans() if slow.begin_ns + 4 * SECOND < s.at_ns <= slow.end_ns]
    assert {span.length_ns for span in inside} == {SECOND}
    assert len(Watches().findings(record).spans) <= 2 * SPANS_SHOWN


def test_only_the_tenants_with_the_most_bytes_are_kept_and_the_others_counted(watched):
    record, _ = watched(5, Reader(tenants=80))
    span = next(record.spans())
    assert (len(span.uses), span.left_out) == (watching.USES_KEPT, 80 - watching.USES_KEPT)


def test_the_sum_of_many_tenants_is_bounded():
    whole = Span(at_ns=0, length_ns=1)
    for number in range(3 * USES_MAX):
        use = Use(tenant=f"/{number}", disk="sda", operations=1, read_bytes=number, write_bytes=0)
        whole = whole + Span(at_ns=1, length_ns=1, uses=(use,))
    assert len(whole.uses) == USES_MAX
    assert whole.left_out > 0


def test_ctrl_c_ends_a_watch_without_a_duration(watched):
    record, events = watched(None, until_s=10)
    assert "interrupted" not in events
    assert record.is_ended
    assert Watches().continued_by(record) == ()


def test_an_interrupted_watch_is_continued_for_the_rest_of_its_time(watched):
    record, events = watched(100, until_s=40)
    assert events[-1] == "interrupted"
    assert Watches().continued_by(record) == ("watch", "--resume", str(record.path))
    clock = Clock()
    watches(clock, Reader(), 2 * 10**18).resume(record, Options(fake_host()), silent)
    findings = Watches().findings(record)
    assert (clock.ns, findings.whole.length_ns, findings.gaps) == (60 * SECOND, 100 * SECOND, 1)
    notes = []
    Watches().resume(record, Options(fake_host()), notes.append)
    assert any("nothing is left to measure" in note.text for note in notes if isinstance(note, Note))


class View(contextlib.nullcontext):
    def __call__(self, event):
        pass


def test_the_message_after_ctrl_c_speaks_of_nothing_that_a_watch_does_not_have(watched):
    record, _ = watched(100, until_s=40)
    console = Console(file=io.StringIO(), width=200)

    def interrupted(emit):
        emit(Started(record.path))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(interrupted, Options(fake_host()), View(), console, measures=False)
    said = console.file.getvalue()
    assert f"partywall watch --resume {record.path}" in said
    assert "is kept" in said
    assert "process" not in said


def test_a_kill_in_a_slow_time_leaves_its_beginning(watched):
    record, _ = watched(300, Reader(range(200, 290)), until_s=250)
    (slow,) = Watches().findings(record).slow
    assert slow.end_ns is None


def test_periods_that_the_reader_missed_are_counted(watched):
    class Late(Reader):
        def read(self, now_ns):
            clock.ns += 3 * SECOND if now_ns == 5 * SECOND else 0
            return super().read(clock.ns)

    clock = Clock()
    spans = []
    late = Late()
    record = WatchRecord.create(watched(1)[0].path.parent / "other", WatchJob(), {})
    course, waits = watching.Course(record, spans.append), Waits(None, lambda _: None, lambda: clock.ns)
    watching.watch(course, record, late, waits, 10 * SECOND, spans.append, clock, lambda: clock.ns)
    findings = Watches().findings(record)
    assert findings.whole.length_ns == 10 * SECOND
    assert findings.whole.late > 0


def test_the_journal_shows_the_periods_that_the_record_keeps(watched):
    record, events = watched(10)
    seen = next(event for event in events if isinstance(event, Seen))
    with Journal(live) as journal:
        journal._stream = (record.path / "journal.jsonl").open("ab")
        journal(seen)
        journal(replace(seen, is_kept=False))
    first, last = [json.loads(line) for line in (record.path / "journal.jsonl").read_text().splitlines()]
    assert (first["event"], last["event"]) == ("seen", "ended")
    assert first["headline"] == "no disk is slow"
    assert [table["title"] for table in first["tables"]] == ["Disks", "Tenants"]
    assert first["tables"][0]["rows"][0][:3] == ["sda", "30 %", "400 KiB/s"]


def test_metrics_are_running_totals():
    totals = Totals()
    reader = Reader(range(3, 9))
    before = reader.read(0)
    for second in range(1, 5):
        after = reader.read(second * SECOND)
        totals.add(Period(span=watching.reading.span(before, after, second)))
        before = after
    text = totals.text()
    assert 'partywall_watch_reads_total{disk="sda"} 400\n' in text
    assert 'partywall_watch_tenant_written_bytes_total{tenant="/writer",disk="sda"} 7372800\n' in text
    assert 'partywall_watch_slow{disk="sda"} 0\n' in text


def test_names_with_quotes_backslashes_and_newlines_are_escaped_in_metrics():
    use = Use(tenant='/a"b\\x2dc d=e\n', disk="cciss/c0d0", operations=1, read_bytes=7, write_bytes=0)
    totals, disk = Totals(), Disk(disk="cciss/c0d0", read_bytes=7)
    totals.add(Period(span=Span(at_ns=1, length_ns=1, disks=(disk,), uses=(use,), counted=("cciss/c0d0",))))
    name = 'tenant="/a\\"b\\\\x2dc d=e\\n",disk="cciss/c0d0"'
    assert f"partywall_watch_tenant_read_bytes_total{{{name}}} 7\n" in totals.text()


def test_metrics_have_the_tenants_with_the_most_bytes_and_count_the_others():
    def use(number, read_bytes):
        return Use(tenant=f"/{number:03}", disk="sda", operations=1, read_bytes=read_bytes, write_bytes=0)

    totals = Totals()
    uses = (use(0, 10**9), *(use(number, 100 + number) for number in range(1, 300)))
    for _ in range(3):
        totals.add(Period(span=Span(at_ns=1, length_ns=1, uses=uses)))
    text = totals.text()
    assert 'partywall_watch_tenant_read_bytes_total{tenant="/000",disk="sda"} 3000000000\n' in text
    assert text.count("partywall_watch_tenant_read_bytes_total{") == USES_WRITTEN
    assert 'tenant="/100"' not in text
    assert "\npartywall_watch_tenants_left_out{} 100\n" in text
    totals.add(Period(span=Span(at_ns=1, length_ns=1, uses=(use(100, 10**6),))))
    assert 'partywall_watch_tenant_read_bytes_total{tenant="/100",disk="sda"} 1000600\n' in totals.text()


def test_metrics_of_very_many_tenants_stay_bounded():
    totals = Totals()
    for number in range(2 * USES_KEPT):
        use = Use(tenant=f"/{number}", disk="sda", operations=1, read_bytes=1 + number, write_bytes=0)
        totals.add(Period(span=Span(at_ns=1, length_ns=1, uses=(use,))))
    assert len(totals._uses) == USES_KEPT
    assert f"\npartywall_watch_tenants_left_out{{}} {USES_KEPT - USES_WRITTEN + 1}\n" in totals.text()


def test_a_page_has_the_slow_time_and_its_charts(watched):
    record, _ = watched(300, Reader(range(200, 230)))
    findings = Watches().findings(record)
    text = page(findings)
    assert "Likely neighbour: /writer" in text
    assert 'data-chart="latency-0"' in text
    assert "missing: a counter; boot with it" in text
    assert set(FILES.charts(findings)) == {"latency-0", "tenants-0"}
    rows = FILES.rows(findings)
    assert [(row["disk"], row["tenant"]) for row in rows] == [("sda", "all"), ("sda", "/reader"), ("sda", "/writer")]
    assert rows[0]["slow_s"] == 30


def test_a_period_that_is_too_short_is_refused():
    with pytest.raises(UsageError, match="--every must be at least 100 ms, not 10ms"):
        WatchJob.parsed({"every_ns": "10ms"})


def test_a_damaged_line_is_told_with_its_place(watched):
    record, _ = watched(3)
    record.append_line('{"kind": "span", "at_ns": "x"}')
    with pytest.raises(UsageError, match=r"events\.jsonl:\d+: is invalid: at_ns"):
        kinds.of(record).findings(record)
