"""Counters of disks and tenants, on hosts made of files."""

import os
import shutil

import pytest

from partywall.errors import CapabilityError, UsageError
from partywall.model.watch import HOST, REST
from partywall.testing.hosts import fake_host
from partywall.watch.reading import LOOK_NS, SOON_NS, Reader, span

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

    def process(self, pid, comm="sleep", cgroup="/", read=0, write=0, start=100):
        self.write(f"proc/{pid}/stat", f"{pid} ({comm}) S {'0 ' * 18}{start} 0 0\n")
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


def test_another_disk_of_the_same_name_does_not_count_back(v2):
    v2.disks(reads=10, ms=5000, busy=9000)
    sda, _ = of(Reader(v2.host), lambda: v2.disks(reads=1, ms=3, busy=3)).disks
    assert (sda.reads, sda.read_ns, sda.busy_ns) == (0, 0, 0)


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
