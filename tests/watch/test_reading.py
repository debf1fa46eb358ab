"""Counters of disks and tenants, on hosts made of files."""

import os
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partywall.errors import CapabilityError, UsageError
from partywall.testing.hosts import fake_host
from partywall.watch.measure.reading import LOOK_NS, SOON_NS, Reader, span
from partywall.watch.record import HOST, REST, UNKNOWN, Disk, Span, Use, parts

ROW = (
    "{number} {name} {reads} 0 {sectors} {ms} {writes} 0 {written} {written_ms} {flight} {busy} 0"
    " {discards} 0 0 0 {flushes} 0\n"
)
IO = "rchar: 1\nwchar: 1\nsyscr: 1\nsyscw: 1\nread_bytes: {read}\nwrite_bytes: {write}\ncancelled_write_bytes: 0\n"


class Machine:
    """A host's files, which tests change."""

    def __init__(self, root):
        self.root = root
        self.host = fake_host(root=root)
        for name, number in (("sda", "8:0"), ("sdb", "8:16")):
            self.write(f"sys/block/{name}/dev", f"{number}\n")
            self.write(f"sys/block/{name}/size", "1000\n")
        self.write("sys/block/loop0/dev", "7:0\n")
        self.write("sys/block/loop0/size", "0\n")
        self.disks()

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def mounts(self, *kinds):
        lines = [
            f"{40 + n} 1 0:{n} / /sys/fs/cgroup/{place} rw - {kind} {kind} rw,{options}\n"
            for n, (place, kind, options) in enumerate(kinds)
        ]
        self.write("proc/self/mountinfo", "".join(lines))

    def disks(self, **sda):
        values = dict.fromkeys(
            ("reads", "sectors", "ms", "writes", "written", "written_ms", "flight", "busy", "discards", "flushes"), 0
        )
        rows = [ROW.format(number="8 0", name="sda", **(values | sda))]
        rows += [ROW.format(number="8 1", name="sda1", **values), ROW.format(number="8 16", name="sdb", **values)]
        self.write("proc/diskstats", "".join(rows))

    def group(self, path, pids=(), **files):
        self.write(f"{path}/cgroup.procs", "".join(f"{pid}\n" for pid in pids))
        for name, text in files.items():
            self.write(f"{path}/{name.replace('__', '.')}", text)

    def process(self, pid, comm="sleep", cgroup="/", read=0, write=0, start=100, parent=0, state="S"):
        self.write(f"proc/{pid}/stat", f"{pid} ({comm}) {state} {parent} {'0 ' * 17}{start} 0 0\n")
        self.write(f"proc/{pid}/comm", f"{comm}\n")
        self.write(f"proc/{pid}/cgroup", f"9:blkio:{cgroup}\n0::{cgroup}\n")
        self.write(f"proc/{pid}/io", IO.format(read=read, write=write))


@pytest.fixture
def v2(tmp_path):
    machine = Machine(tmp_path)
    machine.mounts(("", "cgroup2", "nsdelegate"))
    machine.group("sys/fs/cgroup", cgroup__controllers="cpu io memory\n")
    machine.group("sys/fs/cgroup/docker")
    machine.write("proc/pressure/io", "some avg10=0.00 avg60=0.00 avg300=0.00 total=100\nfull total=50\n")
    return machine


@pytest.fixture
def v1(tmp_path):
    machine = Machine(tmp_path)
    machine.mounts(("blkio", "cgroup", "blkio"), ("memory", "cgroup", "memory"))
    machine.group("sys/fs/cgroup/blkio", blkio__throttle__io_serviced_recursive="Total 0\n")
    return machine


def of(reader, change):
    """The span of a moment in which `change` is made."""
    before = reader.read(0)
    change()
    return span(before, reader.read(SOON_NS), SOON_NS)


def test_a_disk_is_its_counters_differences(v2):
    v2.disks(reads=10, sectors=80, ms=5, busy=100)
    reader = Reader(v2.host)
    seen = of(reader, lambda: v2.disks(reads=30, sectors=240, ms=105, writes=5, written=8, flight=3, busy=600))
    sda, sdb = seen.disks
    assert (sda.disk, sda.reads, sda.read_bytes, sda.read_ns, sda.busy_ns) == ("sda", 20, 81920, 10**8, 5 * 10**8)
    assert (sda.latency_ns("reads"), sda.queued(seen.length_ns), sda.in_flight) == (5e6, 0.05, 3)
    assert sdb.latency_ns("reads") is None
    assert reader.disks == ("sda", "sdb")


def test_times_that_wrap_after_49_days_go_on(v2):
    v2.disks(reads=10, ms=2**32 - 50, written_ms=2**32 - 1, busy=2**32 - 500)
    reader = Reader(v2.host)
    sda, _ = of(reader, lambda: v2.disks(reads=20, ms=50, written_ms=2**32 - 1, busy=400)).disks
    assert (sda.read_ns, sda.write_ns, sda.busy_ns) == (100 * 10**6, 0, 900 * 10**6)


def test_another_disk_of_the_same_name_counts_nothing_of_what_either_did_before(v2):
    v2.disks(reads=10, sectors=8, ms=5000, busy=9000)
    sda, _ = of(Reader(v2.host), lambda: v2.disks(reads=1, sectors=10**9, ms=3, busy=3, writes=7)).disks
    assert (sda.reads, sda.read_bytes, sda.writes, sda.read_ns, sda.busy_ns) == (0, 0, 0, 0, 0)


def test_discards_and_flushes_are_counted(v2):
    v2.disks(discards=7, flushes=2)
    sda, _ = of(Reader(v2.host), lambda: v2.disks(discards=10, flushes=4)).disks
    assert (sda.others, sda.operations) == (5, 0)


def test_a_kernel_that_does_not_count_discards_is_read(v2):
    v2.write("proc/diskstats", "8 0 sda 5 0 8 1 0 0 0 0 0 3 0\n")
    sda, *_ = of(Reader(v2.host), lambda: v2.write("proc/diskstats", "8 0 sda 9 0 8 1 0 0 0 0 0 3 0\n")).disks
    assert (sda.reads, sda.others) == (4, 0)


def test_cgroups_of_version_2_are_read_by_disk(v2):
    v2.group("sys/fs/cgroup/docker/a1", [7], io__stat="8:0 rbytes=100 wbytes=0 rios=1 wios=0 dbytes=0 dios=0\n")
    reader = Reader(v2.host)

    def change():
        v2.group("sys/fs/cgroup/docker/a1", [7], io__stat="8:0 rbytes=300 wbytes=50 rios=3 wios=1\n9:0 rbytes=1\n")
        v2.write("sys/fs/cgroup/docker/a1/io.pressure", "some avg10=0 total=5\n")

    seen = of(reader, change)
    (use,) = seen.uses
    assert (use.tenant, use.disk, use.operations, use.read_bytes, use.write_bytes) == ("/docker/a1", "sda", 3, 200, 50)
    assert list(reader.lacks()) == []


OLD = "104 0 cciss/c0d0 {reads} 0 8 1 0 0 0 0 {flight} 3 0\n"


def test_a_disk_whose_name_has_a_slash_is_read_and_can_be_named(v2):
    v2.write("sys/block/cciss!c0d0/dev", "104:0\n")
    v2.write("sys/block/cciss!c0d0/size", "1000\n")
    v2.write("proc/diskstats", OLD.format(reads=5, flight=0))
    v2.group("sys/fs/cgroup/docker/a1", [7], io__stat="104:0 rbytes=0 wbytes=0 rios=0 wios=0\n")
    for name in ("cciss/c0d0", "/dev/cciss/c0d0", "cciss!c0d0"):
        assert Reader(v2.host, [name]).disks == ("cciss/c0d0",)
    reader = Reader(v2.host)

    def change():
        v2.write("proc/diskstats", OLD.format(reads=9, flight=0))
        v2.group("sys/fs/cgroup/docker/a1", [7], io__stat="104:0 rbytes=512 wbytes=0 rios=1 wios=0\n")

    seen = of(reader, change)
    assert [(disk.disk, disk.reads) for disk in seen.disks] == [("cciss/c0d0", 4)]
    assert [(use.disk, use.read_bytes) for use in seen.uses] == [("cciss/c0d0", 512)]


@pytest.mark.parametrize(
    ("row", "in_flight"),
    [
        ("8 0 sda 7 0 8 1 0 0 0 0 -1 3 0\n", 0),
        ("8 0 sda 7 0 8 1 0 0 0 0 4294967295 3 0\n", 0),
        ("8 0 sda 7 0 8 1 0 0 0 0 2 3 0 0 0 0 0 0 0 5 6 7\n", 2),
        ("8 0 a disk 7 0 8 1 0 0 0 0 2 3 0\n", 2),
        # A name that ends in a number, with the counters of each age of kernels.
        ("8 0 disk 5 7 0 8 1 0 0 0 0 2 3 0\n", 2),
        ("8 0 disk 5 7 0 8 1 0 0 0 0 2 3 0 9 9 9 9\n", 2),
        ("8 0 disk 5 7 0 8 1 0 0 0 0 2 3 0 9 9 9 9 9 9\n", 2),
        # An old kernel's line of a partition, a cut one, and one that is no line of disks at all.
        ("8 1 sda1 1 2 3 4\n8\n\nx y z 1\n8 0 sda 7 0 8 1 0 0 0 0 2 3 0\n", 2),
    ],
)
def test_every_form_of_a_disks_line_is_read(v2, row, in_flight):
    v2.write("proc/diskstats", "8 0 sda 5 0 8 1 0 0 0 0 0 3 0\n")
    (sda,) = of(Reader(v2.host), lambda: v2.write("proc/diskstats", row)).disks
    assert (sda.disk, sda.reads, sda.in_flight) == ("sda", 2, in_flight)


def test_a_disk_whose_name_is_words_and_numbers_has_its_own_counters(v2):
    v2.write("sys/block/disk 1 2 3 4/dev", "104:0\n")
    v2.write("sys/block/disk 1 2 3 4/size", "1000\n")
    row = "104 0 disk 1 2 3 4 {} 0 8 1 0 0 0 0 2 3 0\n"
    v2.write("proc/diskstats", row.format(5))
    (disk,) = of(Reader(v2.host), lambda: v2.write("proc/diskstats", row.format(7))).disks
    assert (disk.disk, disk.reads, disk.in_flight) == ("disk 1 2 3 4", 2, 2)


def test_a_disk_without_counters_is_named(v2):
    v2.write("proc/diskstats", "8 0 sda 5 0 8 1\n")
    said = [text for text in Reader(v2.host).lacks() if "diskstats" in text]
    assert len(said) == 1
    assert said[0].startswith("sda, sdb: /proc/diskstats does not have it")


@pytest.mark.parametrize(
    ("stat", "expected"),
    [
        ("8:0 rbytes=300 wbytes=0 rios=3 wios=0 cost.usage=7 cost.vrate=100.00\n", {"sda": 200}),
        # A kernel that prints devices without counters before one that has some.
        ("8:0 8:16 rbytes=50 wbytes=0 rios=1 wios=0\n", {"sdb": 50}),
        ("8:0 \n", {}),
        ("8:0", {}),
        ("(unknown) rbytes=9 wbytes=0 rios=6 wios=0\n(unknown) rbytes=9\n8:0 rbytes=101 rios=1\n", {"sda": 1}),
        ("8:0 rbytes=x\n", {}),
        ("", {}),
    ],
)
def test_every_form_of_io_stat_is_read_and_booked_to_its_own_disk(v2, stat, expected):
    before = "8:0 rbytes=100 wbytes=0 rios=1 wios=0\n"
    v2.group("sys/fs/cgroup/docker/a1", [7], io__stat=before)
    reader = Reader(v2.host)
    seen = of(reader, lambda: v2.group("sys/fs/cgroup/docker/a1", [7], io__stat=stat))
    assert {use.disk: use.read_bytes for use in seen.uses} == expected
    # What was left out for a moment is not counted from 0 when it comes back.
    now = reader.read(2 * SOON_NS)
    v2.group("sys/fs/cgroup/docker/a1", [7], io__stat="8:0 rbytes=400 wbytes=0 rios=4 wios=0\n")
    uses = span(now, reader.read(3 * SOON_NS), 0).uses
    assert [use.read_bytes for use in uses if use.disk == "sda"] == [300 - expected.get("sda", 0)]


def test_a_device_that_the_kernel_does_not_name_is_said(v2):
    v2.group("sys/fs/cgroup/docker/a1", [7], io__stat="(unknown) rbytes=9 wbytes=0 rios=6 wios=0\n")
    reader = Reader(v2.host)
    reader.look(0)
    assert any("a device that the kernel does not name" in text for text in reader.lacks())


def test_what_a_group_did_on_a_disk_before_the_disk_was_found_is_not_counted(v2):
    v2.group("sys/fs/cgroup/docker/a1", [7], io__stat="65:0 rbytes=900 wbytes=0 rios=9 wios=0\n")
    reader = Reader(v2.host)
    before = reader.read(0)
    v2.write("sys/block/sdq/dev", "65:0\n")
    v2.write("sys/block/sdq/size", "1000\n")
    v2.write("proc/diskstats", "65 0 sdq 9 0 8 1 0 0 0 0 0 3 0\n")
    assert span(before, reader.read(LOOK_NS), 0).uses == ()


@pytest.mark.parametrize("policy", ["throttle.", "bfq.", ""])
def test_version_1_of_old_kernels_is_read_with_the_groups_below(v1, policy):
    """Without files that include the groups below; and CFQ, whose files have no policy in their names."""
    top = v1.root / "sys/fs/cgroup/blkio"
    (top / "blkio.throttle.io_serviced_recursive").unlink()

    def write(count):
        for group in ("", "web", "web/inner"):
            for file, scale in (("io_serviced", 1), ("io_service_bytes", 512)):
                rows = f"(unknown) Read 5\n8:0 Read {count * scale}\n8:0 Discard 9\n8:0 Total 9\nTotal 9\n"
                v1.write(f"sys/fs/cgroup/blkio/{group}/blkio.{policy}{file}", rows)

    v1.group("sys/fs/cgroup/blkio/web", [7])
    v1.group("sys/fs/cgroup/blkio/web/inner", [8])
    write(1)
    reader = Reader(v1.host, ["sda"])
    (use,) = of(reader, lambda: write(4)).uses
    assert (use.tenant, use.disk, use.operations, use.read_bytes) == ("/web", "sda", 6, 3072)


def test_bytes_of_a_child_that_has_ended_are_not_counted_again_with_its_parent(v1):
    v1.group("sys/fs/cgroup/memory/web", [7, 8])
    v1.process(7, write=100)
    v1.process(8, write=5000, parent=7, start=101)
    reader = Reader(v1.host)
    before = reader.read(0)
    v1.process(8, write=6000, parent=7, start=101)
    middle = reader.read(SOON_NS)
    # The child writes 30 more and ends; its parent writes 4, and waits for it.
    shutil.rmtree(v1.root / "proc/8")
    v1.group("sys/fs/cgroup/memory/web", [7])
    v1.process(7, write=100 + 6030 + 4)
    after = reader.read(2 * SOON_NS)
    assert [use.write_bytes for use in span(before, middle, 0).uses] == [1000]
    assert [use.write_bytes for use in span(middle, after, 0).uses] == [34]


def test_a_process_that_nobody_has_waited_for_still_belongs_to_its_tenant(v1):
    """Groups no longer list it then."""
    v1.group("sys/fs/cgroup/memory/web", [7, 8])
    v1.process(7)
    v1.process(8, write=5000, parent=7, start=101)
    reader = Reader(v1.host)
    before = reader.read(0)
    v1.group("sys/fs/cgroup/memory/web", [7])
    v1.process(8, write=5600, parent=7, start=101, state="Z")
    middle = reader.read(LOOK_NS)
    shutil.rmtree(v1.root / "proc/8")
    v1.process(7, write=5600)
    after = reader.read(2 * LOOK_NS)
    assert [use.write_bytes for use in span(before, middle, 0).uses] == [600]
    assert span(middle, after, 0).uses == ()


def test_what_process_1_takes_over_from_orphans_is_not_its_own(v1):
    v1.group("sys/fs/cgroup/memory/init.scope", [1])
    v1.process(1)
    v1.write("proc/1/task/1/io", IO.format(read=0, write=0))

    def change():
        v1.process(1, write=10**9)
        v1.write("proc/1/task/1/io", IO.format(read=0, write=512))

    (use,) = of(Reader(v1.host), change).uses
    assert (use.tenant, use.write_bytes) == ("/init.scope", 512)


def test_a_process_that_moves_to_another_tenant_or_waits_for_one_of_another_is_booked_to_neither(v1):
    for group, pids in (("web", [7]), ("db", [8, 9])):
        v1.group(f"sys/fs/cgroup/memory/{group}", pids)
    v1.process(7, start=100)
    v1.process(8, start=101)
    v1.process(9, parent=7, write=4000, start=102)
    reader = Reader(v1.host)
    before = reader.read(0)
    v1.group("sys/fs/cgroup/memory/web", [7, 8])
    v1.process(8, start=101, write=30)
    shutil.rmtree(v1.root / "proc/9")
    v1.process(7, start=100, write=4000 + 200)
    seen = span(before, reader.read(LOOK_NS), 0)
    assert [(use.tenant, use.write_bytes) for use in seen.uses] == [(UNKNOWN, 230)]


def test_children_of_a_named_process_belong_to_it(v1):
    v1.process(7, "postgres")
    v1.process(8, "postgres", parent=7, start=101)
    reader = Reader(v1.host, chosen=("db=pid:7",))
    (use,) = of(reader, lambda: v1.process(8, "postgres", write=512, parent=7, start=101)).uses
    assert (use.tenant, use.write_bytes) == ("db", 512)


def test_switching_on_the_counters_of_a_group_does_not_count_its_past_again(v2):
    v2.group("sys/fs/cgroup/docker/a1", [7])
    v2.process(7)
    reader = Reader(v2.host)
    reader.read(0)
    v2.process(7, write=4096)
    before = reader.read(SOON_NS)
    v2.group("sys/fs/cgroup/docker/a1", [7], io__stat="8:0 rbytes=0 wbytes=0 rios=0 wios=0\n")
    middle = reader.read(SOON_NS + LOOK_NS)
    shutil.rmtree(v2.root / "sys/fs/cgroup/docker/a1")
    after = reader.read(SOON_NS + 2 * LOOK_NS)
    assert span(before, middle, 0).uses == span(middle, after, 0).uses == ()


NUMBERS = st.sampled_from(["8:0", "8:16", "9:9", "(unknown)", "", "Total", "8", "x"])
VALUES = st.sampled_from(["0", "5", "-1", "18446744073709551615", "", "inf", "x", "½", "²"])
KEYS = st.sampled_from(["rbytes", "wbytes", "rios", "wios", "dbytes", "cost.usage", ""])
STAT = st.lists(
    st.builds(
        lambda names, pairs: " ".join([*names, *(f"{k}={v}" for k, v in pairs)]),
        st.lists(NUMBERS, max_size=3),
        st.lists(st.tuples(KEYS, VALUES), max_size=5),
    ),
    max_size=4,
).map("\n".join)
V1 = st.lists(
    st.lists(st.one_of(NUMBERS, VALUES, st.sampled_from(["Read", "Write", "Discard"])), max_size=4).map(" ".join),
    max_size=5,
).map("\n".join)
LINE = st.lists(st.one_of(VALUES, st.sampled_from(["8", "0", "16", "sda", "a b"])), max_size=24).map(" ".join)
DISKSTATS = st.lists(LINE.map("8 0 {}".format), max_size=4).map("\n".join)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_the_kernel_prints_is_read_without_an_error(v1, v2, data):
    """Both fixtures have the same folder, so each is given its own mounts."""
    for machine, mounts in ((v2, [("", "cgroup2", "nsdelegate")]), (v1, [("blkio", "cgroup", "blkio")])):
        machine.mounts(*mounts)
        machine.disks()
        reader = Reader(machine.host)
        before = reader.read(0)
        for round_ in range(1, 4):
            machine.write("proc/diskstats", data.draw(DISKSTATS))
            stat, rows = data.draw(STAT), data.draw(V1)
            machine.group("sys/fs/cgroup/docker/a1", [7], io__stat=stat)
            for file in ("io_serviced_recursive", "io_service_bytes_recursive"):
                for group in ("", "web"):
                    machine.write(f"sys/fs/cgroup/blkio/{group}/blkio.throttle.{file}", rows)
            after = reader.read(round_ * LOOK_NS)
            list(reader.lacks())
            seen = span(before, after, 0)
            assert {use.disk for use in seen.uses} <= {"sda", "sdb", HOST, REST}
            assert all(use.read_bytes >= 0 and use.write_bytes >= 0 for use in seen.uses)
            assert all(disk.reads >= 0 and disk.in_flight >= 0 for disk in seen.disks)
            before = after


COUNTS = st.integers(0, 1000)
DISKS = st.lists(st.builds(Disk, disk=st.just(""), read_bytes=COUNTS, write_bytes=COUNTS), min_size=1, max_size=3)
CLAIMS = st.lists(st.tuples(COUNTS, COUNTS, st.sampled_from([HOST, REST])), max_size=6)


@given(DISKS, CLAIMS, st.integers(0, 3))
def test_parts_never_exceed_what_the_disks_did_and_bounds_hold(disks, claims, counted):
    disks = [disk.model_copy(update={"disk": f"sd{number}"}) for number, disk in enumerate(disks)]
    uses = tuple(
        Use(tenant=f"/{number}", disk=disk, operations=None, read_bytes=read, write_bytes=written)
        for number, (read, written, disk) in enumerate(claims)
    )
    names = tuple(disk.disk for disk in disks[:counted])
    every = {part.tenant: part for part in parts(Span(at_ns=0, length_ns=1, disks=disks, uses=uses, counted=names))}
    unknown = every.pop(UNKNOWN, None)
    for field in ("read_bytes", "write_bytes"):
        done = sum(getattr(disk, field) for disk in disks)
        left = getattr(unknown, field) if unknown else 0
        assert sum(getattr(part, field) for part in every.values()) + left <= done
        for use in uses:
            part = every[use.tenant]
            most = getattr(part, f"{field}_most")
            assert getattr(part, field) <= most <= min(getattr(use, field), done)
            # Whatever it really did is not above its figure and that of the unknown together.
            assert most <= getattr(part, field) + left


def test_two_that_wrote_more_to_files_than_the_disk_did_are_bounded_and_their_sum_is_of_an_unknown_tenant():
    disk = Disk(disk="sda", write_bytes=5000)
    use = Use(tenant="/a", disk=HOST, operations=None, read_bytes=0, write_bytes=10_000)
    uses = (use, use.model_copy(update={"tenant": "/b", "write_bytes": 4}))
    every = {part.tenant: part for part in parts(Span(at_ns=0, length_ns=1, disks=(disk,), uses=uses))}
    a, b, unknown = every["/a"], every["/b"], every[UNKNOWN]
    assert (a.write_bytes, a.write_bytes_most) == (4996, 5000)
    assert (b.write_bytes, b.write_bytes_most) == (0, 4)
    assert (unknown.write_bytes, sum(part.write_bytes for part in every.values())) == (4, 5000)


def test_pressure_is_that_of_the_host_and_of_each_group(v2):
    v2.group("sys/fs/cgroup/docker/a1", [7], io__stat="", io__pressure="some avg10=0 total=1000\n")

    def change():
        v2.group("sys/fs/cgroup/docker/a1", [7], io__pressure="some avg10=0 total=3000\n")
        v2.write("proc/pressure/io", "some avg10=0 total=700\nfull total=50\n")

    assert of(Reader(v2.host), change).waited_ns == {HOST: 600_000, "/docker/a1": 2_000_000}


def test_groups_of_version_1_are_read_where_the_kernel_counts_them(v1):
    top = "sys/fs/cgroup/blkio"
    v1.group(top, blkio__throttle__io_serviced_recursive="8:0 Read 5\n8:0 Total 5\nTotal 5\n")
    v1.group(f"{top}/web", [7], blkio__throttle__io_serviced_recursive="Total 0\n")
    v1.process(7, read=1000)
    reader = Reader(v1.host)

    def change():
        v1.group(
            f"{top}/web",
            [7],
            blkio__throttle__io_serviced_recursive="8:0 Read 2\n8:0 Write 1\n8:0 Total 3\nTotal 3\n",
            blkio__throttle__io_service_bytes_recursive="8:0 Read 200\n8:0 Write 4096\n8:0 Total 4296\nTotal 4296\n",
        )
        v1.process(7, read=9000)

    on_sda, on_others = of(reader, change).uses
    assert (on_sda.tenant, on_sda.disk, on_sda.operations, on_sda.bytes) == ("/web", "sda", 3, 4296)
    assert (on_others.disk, on_others.operations, on_others.read_bytes) == (REST, None, 8000)
    (uncounted, buffered, pressure) = reader.lacks()
    assert uncounted.startswith("sdb: cgroup version 1 does not count its requests")
    assert "echo '8:16 0' > " in uncounted
    assert "buffered" in buffered
    assert "psi=1" in pressure


def test_disks_are_named_whose_processes_are_not_read_yet(v1):
    top = "sys/fs/cgroup/blkio"
    v1.group(top, blkio__throttle__io_serviced_recursive="8:0 Read 5\n")
    v1.group(f"{top}/web", [7], blkio__throttle__io_serviced_recursive="Total 0\n")
    v1.process(7)
    reader = Reader(v1.host)
    first, second, third = (reader.read(part * SOON_NS // 2) for part in range(3))
    spans = [span(first, second, 0), span(second, third, 0)]
    assert [each.unread for each in spans] == [("sdb",), ()]
    assert (spans[0] + spans[1]).unread == ()
    v1.process(8, "qemu-system-x86")
    reader = Reader(v1.host)
    assert reader.read(0).unread == frozenset()
    assert reader.read(SOON_NS // 2).unread == {"sda", "sdb"}


def test_guests_outside_any_group_are_tenants_and_those_inside_are_not_twice(v1):
    v1.group("sys/fs/cgroup/blkio/vm", [8])
    v1.process(7, "qemu-system-x86", write=0)
    v1.process(8, "qemu-system-x86", "/vm")
    v1.process(9, "bash")
    reader = Reader(v1.host)
    (use,) = of(reader, lambda: v1.process(7, "qemu-system-x86", write=4096)).uses
    assert (use.tenant, use.disk, use.operations, use.write_bytes) == ("qemu-system-x86 (7)", HOST, None, 4096)
    assert reader.tenants == ("/vm", "qemu-system-x86 (7)")


def test_a_process_with_the_number_of_a_named_one_that_has_ended_is_not_charged_to_it(v2):
    v2.process(7, "postgres")
    reader = Reader(v2.host, (), ("db=pid:7",))
    before = reader.read(0)
    assert list(reader.gone()) == []
    v2.process(7, "backup", write=10**9, start=200)
    after = reader.read(LOOK_NS)
    assert span(before, after, LOOK_NS).uses == ()
    assert list(reader.gone()) == ["db: process 7 has ended; nothing more is counted for it"]
    reader.read(2 * LOOK_NS)
    assert list(reader.gone()) == []


def test_a_guest_with_the_number_of_another_counts_from_its_own_beginning(v1):
    v1.process(7, "qemu-system-x86", write=500)
    reader = Reader(v1.host)
    reader.read(0)
    v1.process(7, "qemu-system-x86", write=10**9, start=200)
    before = reader.read(LOOK_NS)
    v1.process(7, "qemu-system-x86", write=10**9 + 512, start=200)
    (use,) = span(before, reader.read(2 * LOOK_NS), LOOK_NS).uses
    assert use.write_bytes == 512
    assert list(reader.gone()) == []


def test_a_named_disk_or_group_that_is_gone_is_said_once(v2):
    v2.group("sys/fs/cgroup/web", [7], io__stat="")
    reader = Reader(v2.host, ("sda",), ("/web",))
    reader.read(0)
    shutil.rmtree(v2.root / "sys/fs/cgroup/web")
    shutil.rmtree(v2.root / "sys/block/sda")
    reader.read(LOOK_NS)
    assert list(reader.gone()) == ["there is no disk sda any more", "/web: its cgroup does not exist any more"]
    reader.read(2 * LOOK_NS)
    assert list(reader.gone()) == []


def test_a_tenant_that_starts_later_is_found(v2):
    reader = Reader(v2.host)
    reader.read(0)
    v2.group("sys/fs/cgroup/system.slice")
    v2.group("sys/fs/cgroup/system.slice/db.service", [5], io__stat="8:0 rbytes=0 wbytes=512 rios=0 wios=1\n")
    before = reader.read(LOOK_NS)
    v2.group("sys/fs/cgroup/system.slice/db.service", [5], io__stat="8:0 rbytes=0 wbytes=1536 rios=0 wios=3\n")
    (use,) = span(before, reader.read(2 * LOOK_NS), LOOK_NS).uses
    assert (use.tenant, use.write_bytes) == ("/system.slice/db.service", 1024)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [(b"a\x1b[2Jx", "/docker/a\\x1b[2Jx"), (b"bad\xff", "/docker/bad\\udcff"), (b"caf\xc3\xa9", "/docker/café")],
)
def test_names_of_groups_can_be_printed_and_stored(v2, raw, shown):
    stat = v2.root / "sys/fs/cgroup/docker" / os.fsdecode(raw) / "io.stat"
    stat.parent.mkdir()
    stat.write_text("8:0 rbytes=0 wbytes=0 rios=0 wios=0\n")
    reader = Reader(v2.host)
    (use,) = of(reader, lambda: stat.write_text("8:0 rbytes=9 wbytes=0 rios=1 wios=0\n")).uses
    assert (use.tenant, use.read_bytes) == (shown, 9)
    shown.encode()


def test_names_of_programs_can_be_printed(v2):
    v2.process(7, "qemu\x1b[2J")
    reader = Reader(v2.host)
    reader.read(0)
    assert reader.tenants == ("/docker", "qemu\\x1b[2J (7)")


def test_a_new_tenant_beside_others_is_found_soon(v2, tmp_path):
    if tmp_path.stat().st_nlink < 2:
        pytest.skip("a file system whose folders count those in them")
    v2.group("sys/fs/cgroup/docker/a1", [7], io__stat="")
    reader = Reader(v2.host)
    reader.read(0)
    v2.group("sys/fs/cgroup/docker/a2", io__stat="")
    reader.read(SOON_NS)
    assert reader.tenants == ("/docker/a1", "/docker/a2")


def test_what_a_tenant_did_before_it_was_found_is_not_of_the_period_that_finds_it(v2):
    reader = Reader(v2.host)
    before = reader.read(0)
    v2.group("sys/fs/cgroup/docker/a1", [7], io__stat="8:0 rbytes=0 wbytes=99999 rios=0 wios=9\n")
    assert span(before, reader.read(LOOK_NS), LOOK_NS).uses == ()


def test_a_group_without_blkio_is_found_in_another_hierarchy(v1):
    v1.group("sys/fs/cgroup/blkio", blkio__throttle__io_serviced_recursive="8:0 Read 5\n8:16 Read 5\n")
    v1.group("sys/fs/cgroup/memory/web", [7])
    v1.process(7)
    reader = Reader(v1.host)
    (use,) = of(reader, lambda: v1.process(7, write=512)).uses
    assert (use.tenant, use.disk, use.write_bytes) == ("/web", HOST, 512)
    assert "/web: no io controller" in next(reader.lacks())


@pytest.mark.parametrize(
    ("counted", "others", "expected"),
    [
        ({"web": [7]}, {"web": [7]}, {"/web"}),
        ({"web": [7]}, {"web/a": [7]}, {"/web"}),
        ({"web/a": [7]}, {"web": [7]}, {"/web/a"}),
        # The host's container manager uses the other hierarchy alone.
        ({"docker": []}, {"docker/a": [7], "docker/b": [8]}, {"/docker/a", "/docker/b"}),
        ({"web": [7], "docker": []}, {"web": [7], "docker/a": [8]}, {"/web", "/docker/a"}),
        ({"web": [7]}, {"web2": [8]}, {"/web", "/web2"}),
    ],
)
def test_groups_of_two_hierarchies_do_not_overlap(v1, counted, others, expected):
    for hierarchy, every in (("blkio", counted), ("memory", others)):
        for path, pids in every.items():
            v1.group(f"sys/fs/cgroup/{hierarchy}/{path}", pids)
    for pid in (7, 8):
        v1.process(pid)
    reader = Reader(v1.host)
    reader.look(0)
    assert set(reader.tenants) == expected


def test_a_group_that_was_created_again_counts_from_0(v2):
    v2.group("sys/fs/cgroup/docker/a1", [7], io__stat="8:0 rbytes=900 wbytes=0 rios=9 wios=0\n")
    reader = Reader(v2.host)
    seen = of(
        reader, lambda: v2.group("sys/fs/cgroup/docker/a1", [7], io__stat="8:0 rbytes=100 wbytes=0 rios=1 wios=0\n")
    )
    assert seen.uses[0].read_bytes == 100


def test_what_a_group_without_io_controller_costs_is_named(v2):
    v2.group("sys/fs/cgroup/docker/a1", [7])
    v2.process(7, cgroup="/docker/a1")
    reader = Reader(v2.host)
    (use,) = of(reader, lambda: v2.process(7, cgroup="/docker/a1", read=512)).uses
    assert (use.disk, use.read_bytes) == (HOST, 512)
    (lack,) = reader.lacks()
    assert "no io controller" in lack
    assert "/cgroup.subtree_control, then the same in each group from there down to the tenant's parent" in lack
    assert "systemctl set-property UNIT IOAccounting=yes" in lack


@pytest.mark.parametrize(
    ("disks", "chosen", "said"),
    [
        (["sdc"], [], "there is no disk 'sdc' — there are sda, sdb"),
        (["/dev/sda1"], [], "there is no disk '/dev/sda1' — give the whole disk, sda"),
        ([], ["/none"], "there is no cgroup /none — give pid:NUMBER"),
        ([], ["pid:99"], "there is no process 99"),
        ([], ["a=pid:7", "a=pid:7"], "process 7 is given twice — give it once"),
        ([], ["a=pid:7", "b=pid:7"], "process 7 is given twice"),
        ([], ["/docker/", "b=cgroup:docker"], "cgroup /docker is given twice"),
        ([], ["a=pid:7", "a=/docker"], "process 7 and cgroup /docker have the same name — name one differently"),
        ([], ["/docker", "a=/docker/a1"], "cgroup /docker/a1 is part of cgroup /docker: .* both — give only one"),
        ([], ["/docker/a1", "/"], "cgroup /docker/a1 is part of cgroup /: "),
        ([], ["/docker/a1", "guest=pid:8"], "guest: process 8 is part of cgroup /docker/a1: "),
    ],
)
def test_a_wrong_name_is_told_with_a_remedy(v2, disks, chosen, said):
    v2.process(7)
    v2.process(8, cgroup="/docker/a1")
    with pytest.raises(UsageError, match=said.replace("(", r"\(")):
        Reader(v2.host, disks, chosen)


def test_all_tenants_that_overlap_are_named_and_neighbours_are_watched(v2):
    for name in ("a", "a1", "a/b"):
        v2.group(f"sys/fs/cgroup/docker/{name}")
    v2.process(7)
    with pytest.raises(UsageError) as refused:
        Reader(v2.host, chosen=["/docker", "/docker/a1", "/docker/a/b"])
    assert len(refused.value.problems) == 2
    reader = Reader(v2.host, chosen=["/docker/a", "/docker/a1", "pid:7"])
    assert reader.tenants == ("/docker/a", "/docker/a1", "sleep (7)")


def test_a_host_without_disks_or_cgroups_is_told(tmp_path):
    with pytest.raises(CapabilityError, match="no disk"):
        Reader(fake_host(root=tmp_path))
    machine = Machine(tmp_path)
    with pytest.raises(CapabilityError, match="no cgroups"):
        Reader(machine.host)
