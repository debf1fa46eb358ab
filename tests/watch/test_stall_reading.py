"""Counters of both versions become waits, uses and limits; a quiet host costs little; what is missing is named."""

import os
from pathlib import Path

import pytest

from partywall.errors import CapabilityError
from partywall.watch.stalls import reading
from partywall.watch.stalls.reading import CPU, DISK, MEMORY, Differences, Reader, cells
from partywall.watch.stalls.rule import ITSELF, UNKNOWN, divided
from tests.watch.hosts import CGROUP, S, Tree

ALL = (CPU, MEMORY, DISK)


def parts(interval, resource, victim):
    pairs = divided(interval.shares[resource], interval.others.get(resource, {}))
    return {pair.suspect: pair.stalled_ns / S for pair in pairs if pair.victim == victim}


def between(tree, change, asked=ALL):
    """The interval of one second in which the tree changes."""
    reader = Reader(tree.root)
    reader.look(0)
    differences = Differences(reader.cells)
    assert differences.take(reader.read(0, asked)) is None
    change()
    interval = differences.take(reader.read(S, asked))
    reader.close()
    return interval


@pytest.fixture(params=[True, False], ids=["version 2", "version 1"])
def tree(tmp_path, request):
    made = Tree(tmp_path, is_v2=request.param)
    made.group("web.service")
    made.group("batch.service")
    return made


def test_a_wait_for_a_cpu_is_divided_among_its_users(tree):
    def change():
        tree.host(busy_s=2)
        tree.group("web.service", used_s=0.5, cpu=(0.8, 0))
        tree.group("batch.service", used_s=1.0)

    found = parts(between(tree, change), CPU, "web.service")
    assert found == pytest.approx({ITSELF: 0.2, "batch.service": 0.4, "host": 0.2})


def test_time_in_which_its_own_limit_stopped_a_group_is_its_own(tree):
    def change():
        tree.host(busy_s=2)
        tree.group("web.service", used_s=0.2, cpu=(0.8, 0.8), own_s=0.8)
        tree.group("batch.service", used_s=1.8)

    assert parts(between(tree, change), CPU, "web.service") == {ITSELF: 0.8}


def test_only_reclaim_of_the_host_takes_memory_for_a_neighbour(tree):
    def change(scanned, hits=0):
        tree.host(scanned=scanned)
        tree.group("web.service", memory_s=0.4, taken=4096, hits=hits)
        tree.group("batch.service", taken=3 * 4096)

    def reset():
        tree.group("web.service")
        tree.group("batch.service")

    assert parts(between(tree, lambda: change(0)), MEMORY, "web.service") == {ITSELF: 0.4}
    reset()
    found = parts(between(tree, lambda: change(100)), MEMORY, "web.service")
    assert found == pytest.approx({ITSELF: 0.1, "batch.service": 0.3})
    reset()
    assert parts(between(tree, lambda: change(100, hits=1)), MEMORY, "web.service") == {ITSELF: 0.4}


def test_a_wait_for_a_disk_is_of_those_that_use_it(tmp_path):
    tree = Tree(tmp_path)
    tree.group("web.service")
    tree.group("batch.service")

    def change():
        tree.group("web.service", io_s=0.4, disk=10**6)
        tree.group("batch.service", disk=3 * 10**6)

    assert parts(between(tree, change), DISK, "web.service") == pytest.approx({ITSELF: 0.1, "batch.service": 0.3})
    tree.write(f"{CGROUP}/web.service/io.max", "8:0 rbps=1000 wbps=max riops=max wiops=max\n")
    tree.group("web.service")
    tree.group("batch.service")
    assert parts(between(tree, change), DISK, "web.service") == {UNKNOWN: 0.4}, "its own limit may be the cause"


def test_groups_on_other_cpus_are_no_suspects(tmp_path):
    tree = Tree(tmp_path)
    for name, cpus in (("web", "0-1"), ("beside", "1"), ("elsewhere", "2-3")):
        tree.group(f"{name}.service")
        tree.write(f"{CGROUP}/{name}.service/cpuset.cpus.effective", f"{cpus}\n")

    def change():
        tree.host(busy_s=3)
        tree.group("web.service", used_s=1, cpu=(0.4, 0.4))
        tree.group("beside.service", used_s=1)
        tree.group("elsewhere.service", used_s=1)

    assert parts(between(tree, change), CPU, "web.service") == {"beside.service": 0.4}


def test_no_wait_is_lost_while_a_resource_is_not_read(tmp_path):
    tree = Tree(tmp_path)
    tree.group("web.service")
    reader = Reader(tmp_path)
    reader.look(0)
    differences = Differences()
    differences.take(reader.read(0))
    differences.take(reader.read(S, ()))
    tree.group("web.service", io_s=0.3, disk=1)
    interval = differences.take(reader.read(2 * S))
    assert parts(interval, DISK, "web.service") == {UNKNOWN: 0.3}, "who used it meanwhile was not read"


def test_a_quiet_host_asks_for_nothing_and_a_busy_one_for_what_is_waited_for(tmp_path):
    tree = Tree(tmp_path)
    tree.group("web.service")
    reader = Reader(tmp_path)
    reader.asked(0)
    assert reader.asked(S) == frozenset()
    tree.host(io=0.5)
    assert reader.asked(2 * S) == {DISK}


def test_without_psi_the_longest_wait_of_a_task_counts_and_is_said(tmp_path):
    tree = Tree(tmp_path, is_v2=False, psi=False)
    tree.group("web.service")
    tree.write(f"{CGROUP}/cpu/web.service/cgroup.procs", "7\n")
    tree.write(f"{CGROUP}/unified/web.service/cgroup.procs", "7\n")
    for task in (7, 8):
        tree.write(f"proc/7/task/{task}/schedstat", "0 1000 1\n")

    def change():
        tree.host(busy_s=1)
        tree.write("proc/7/task/7/schedstat", f"0 {S // 2 + 1000} 1\n")
        tree.write("proc/7/task/8/schedstat", f"0 {S // 4 + 1000} 1\n")

    assert sum(parts(between(tree, change), CPU, "web.service").values()) == 0.5
    reader = Reader(tmp_path)
    reader.look(0)
    lacks = [lack.text for lack in reader.lacks()]
    assert [text.partition(":")[0] for text in lacks] == ["no PSI", "no /proc/pressure/memory", "no /proc/pressure/io"]
    assert all("boot with psi=1" in text for text in lacks)


def test_files_longer_than_a_buffer_are_read_to_their_end(tree):
    """A host of 256 CPUs has 34 KB of softnet_stat, and a group with 400 disks 20 KB of io.stat."""
    disks = "".join(f"8:{number} rbytes={number} wbytes=0 rios=0 wios=0\n" for number in range(400))

    def change():
        if tree.is_v2:
            tree.write(f"{CGROUP}/web.service/io.stat", disks)

    row = f"{'00000001 00000002 00000003':<134}\n"
    tree.write("proc/net/softnet_stat", row * 256)
    tree.write("proc/vmstat", "nr_free_pages 12345\n" * 2000 + "pgmajfault 7\n")
    reader = Reader(tree.root)
    assert reader.read(0).host[-3:] == (7, 2 * 256, 3 * 256)
    reader.close()
    if tree.is_v2:
        used = between(tree, change).shares[DISK]["web.service"].used
        assert used == {f"8:{number}": number for number in range(1, 400)}


def test_the_kernels_own_rows_are_read_to_their_end():
    """The kernel gives at most a page of /proc/vmstat at a time."""
    whole = Path("/proc/vmstat").read_text().split()
    descriptor = os.open("/proc/vmstat", os.O_RDONLY)
    read = reading._read(descriptor, has_rows=True).split()
    os.close(descriptor)
    assert [word.decode() for word in read[::2]] == whole[::2]


def test_a_group_that_is_made_again_counts_nothing_at_first(tree):
    tree.group("web.service", cpu=(100, 0), used_s=100)
    interval = between(tree, lambda: tree.group("web.service", cpu=(1, 0), used_s=1))
    assert parts(interval, CPU, "web.service") == {}


def test_new_groups_are_found_and_those_that_ended_are_forgotten(tmp_path):
    tree = Tree(tmp_path)
    tree.group("web.service")
    reader = Reader(tmp_path)
    reader.look(0)
    tree.group("batch.service")
    reader.look(60 * S)
    assert reader.names == {"web.service", "batch.service"}
    for file in (tmp_path / CGROUP / "web.service").iterdir():
        file.unlink()
    (tmp_path / CGROUP / "web.service").rmdir()
    reader.look(120 * S)
    assert reader.names == {"batch.service"}


def test_a_host_without_cgroups_is_refused(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("")
    with pytest.raises(CapabilityError, match="mount cgroup version 2"):
        Reader(tmp_path)


def test_sets_of_cpus_are_divided_into_parts_that_no_set_divides():
    assert cells(["0-1", "1", "2-3", "0-3"]) == {
        "0-1": {"0": 0.5, "1": 0.5},
        "1": {"1": 1.0},
        "2-3": {"2": 1.0},
        "0-3": {"0": 0.25, "1": 0.25, "2": 0.5},
        "": {"0": 0.25, "1": 0.25, "2": 0.5},
    }
