"""Bytes of processes, counted once: a model of what the kernel counts, in random trees, read at random times."""

import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partywall.watch.measure.processes import INIT, Ledger, Processes, Reading
from partywall.watch.record import UNKNOWN


@dataclass
class Task:
    pid: int
    parent: int
    tenant: str
    own: int = 0
    taken_over: int = 0
    ignores: bool = False
    adopts: bool = False
    is_zombie: bool = False
    children: set = field(default_factory=set)


class Kernel:
    """Processes that fork, use the disk, end, and wait for each other. Number 1 is outside of all tenants."""

    def __init__(self):
        self.tasks = {INIT: Task(INIT, 0, "host", adopts=True)}
        self.truth = {}
        self.last = INIT

    def living(self):
        return [task for task in self.tasks.values() if not task.is_zombie and task.pid != INIT]

    def fork(self, parent, tenant=None, **flags):
        self.last += 1
        self.tasks[self.last] = Task(self.last, parent.pid, tenant or parent.tenant, **flags)
        parent.children.add(self.last)
        return self.tasks[self.last]

    def use(self, task, count):
        task.own += count
        self.truth[task.tenant] = self.truth.get(task.tenant, 0) + count

    def end(self, task):
        heir = self.tasks[task.parent]
        while not heir.adopts or heir.is_zombie:
            heir = self.tasks[heir.parent]
        for pid in sorted(task.children):
            self.tasks[pid].parent = heir.pid
            heir.children.add(pid)
        orphans, task.children = set(task.children), set()
        task.is_zombie = True
        for pid in (task.pid, *orphans):
            child = self.tasks.get(pid)
            if child is not None and child.is_zombie and (child.parent == INIT or self.tasks[child.parent].ignores):
                self._release(child)

    def _release(self, child):
        self.tasks[child.parent].children.discard(child.pid)
        del self.tasks[child.pid]

    def reap(self, child):
        if child.is_zombie and not self.tasks[child.parent].is_zombie:
            self.tasks[child.parent].taken_over += child.own + child.taken_over
            self._release(child)


class Finder:
    """What `Processes` knows of the kernel's tree, and when."""

    def __init__(self, kernel):
        self.kernel, self.parents, self.new, self.looked = kernel, {}, set(), False
        self.ledger, self.booked = Ledger(), {}

    def look(self):
        tasks = {pid: task for pid, task in self.kernel.tasks.items() if pid != INIT}
        if self.looked:
            self.new |= tasks.keys() - self.parents.keys()
        self.looked = True
        self.parents = {
            pid: task.parent if self.parents.get(pid) not in tasks else self.parents[pid] for pid, task in tasks.items()
        }

    def read(self, between=lambda: None):
        readings = []
        for pid in sorted(self.parents):
            if (task := self.kernel.tasks.get(pid)) is not None:
                count = task.own + task.taken_over
                is_new = pid in self.new
                readings.append(Reading(pid, pid, self.parents[pid], task.tenant, (0, count), is_new))
                self.new.discard(pid)
            between()
        tasks = self.kernel.tasks
        for tenant, (_, written) in self.ledger.take(
            readings, lambda pid: not tasks[pid].ignores if pid in tasks else True
        ).items():
            self.booked[tenant] = self.booked.get(tenant, 0) + written
        ended = self.parents.keys() - {reading.pid for reading in readings}
        for pid, parent in self.parents.items():
            if parent in ended and pid in tasks:
                self.parents[pid] = tasks[pid].parent


def happen(kernel, event, *, moves=False, orphans=True):
    """One random event, of (kind, which process, number)."""
    kind, which, number = event
    tasks = kernel.living()
    if not tasks:
        return
    task = tasks[which % len(tasks)]
    if kind == "fork":
        kernel.fork(task, tenant="other" if moves and number % 5 == 0 else None)
    elif kind == "odd fork":
        kernel.fork(task, ignores=orphans and number % 2 == 0, adopts=number % 3 == 0)
    elif kind == "use":
        kernel.use(task, number)
    elif kind == "end" and len(tasks) > 1 and task.pid > ROOTS[-1]:
        if orphans or not task.children:
            kernel.end(task)
    elif kind == "reap":
        zombies = [task for task in kernel.tasks.values() if task.is_zombie]
        if zombies:
            kernel.reap(zombies[which % len(zombies)])
    elif kind == "move" and moves:
        task.tenant = "other" if task.tenant != "other" else "a"


KINDS = ("fork", "odd fork", "use", "use", "end", "reap", "reap", "move")
EVENTS = st.tuples(st.sampled_from(KINDS), st.integers(0, 50), st.integers(1, 1000))
STEPS = st.lists(
    st.one_of(EVENTS, st.tuples(st.just("read"), st.booleans(), st.lists(EVENTS, max_size=6))), max_size=60
)
ROOTS = (2, 3)


def watched(before, steps, **rules):
    """A kernel with a process of two tenants, and events before and during the watch."""
    kernel = Kernel()
    for tenant in ("a", "b"):
        kernel.fork(kernel.tasks[INIT], tenant)
    for event in before:
        happen(kernel, event, **rules)
    kernel.truth.clear()
    finder = Finder(kernel)
    finder.look()
    finder.read()
    for step in steps:
        if step[0] != "read":
            happen(kernel, step, **rules)
            continue
        _, looks, events = step
        events = list(events)
        if looks:
            finder.look()
        finder.read(lambda events=events: events and happen(kernel, events.pop(0), **rules))
    return kernel, finder


@settings(max_examples=400, deadline=None)
@given(st.lists(EVENTS, max_size=30), STEPS)
def test_no_tenant_is_charged_for_more_than_its_processes_did(before, steps):
    kernel, finder = watched(before, steps)
    finder.read()
    finder.read()
    for tenant, booked in finder.booked.items():
        assert booked <= kernel.truth.get(tenant, 0), tenant


@settings(max_examples=400, deadline=None)
@given(st.lists(EVENTS, max_size=30), STEPS)
def test_all_tenants_are_never_charged_for_more_than_was_done_even_if_processes_move(before, steps):
    kernel, finder = watched(before, steps, moves=True)
    finder.read()
    assert sum(finder.booked.values()) <= sum(kernel.truth.values())


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENTS, max_size=30), STEPS)
def test_nothing_is_lost_while_parents_wait_for_their_children(before, steps):
    kernel, finder = watched(before, steps, orphans=False)
    for _ in range(len(kernel.tasks)):
        for task in [task for task in kernel.tasks.values() if task.is_zombie]:
            kernel.reap(task)
    finder.look()
    finder.read()
    finder.read()
    finder.look()
    finder.read()
    assert finder.booked.get(UNKNOWN, 0) == 0
    assert {tenant: count for tenant, count in finder.booked.items() if count} == {
        tenant: count for tenant, count in kernel.truth.items() if count
    }


def test_only_the_parent_pays_for_a_child_while_it_lives():
    """The child ends after its parent was read, so its bytes come with the parent's next reading."""
    ledger = Ledger()
    top, parent, child = (Reading(pid, pid, pid - 1, "a", (0, 100)) for pid in (2, 3, 4))
    ledger.take([top, parent, child])
    assert ledger.take([top._replace(bytes=(0, 150)), parent]) == {"a": [0, 50]}
    assert ledger.take([top._replace(bytes=(0, 150)), parent._replace(bytes=(0, 230))]) == {"a": [0, 30]}


WRITER = """
import os, signal, sys
def write(count):
    with open(sys.argv[1], "ab", buffering=0) as file:
        file.write(b"x" * count)
        os.fsync(file.fileno())
def step():
    print("done", flush=True)
    sys.stdin.readline()
if sys.argv[2] == "ignores":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
write(1 << 20)
step()
begin, go = os.pipe()
child = os.fork()
if not child:
    write(2 << 20)
    os.write(go, b"x")
    os.close(go)
    sys.stdin.readline()
    write(4 << 20)
    os._exit(0)
os.read(begin, 1)
print("done", flush=True)
try:
    os.waitpid(child, 0)
except ChildProcessError:
    pass
write(8 << 20)
step()
"""


@pytest.mark.parametrize(("how", "mib"), [("waits", 2 + 4 + 8), ("ignores", 2 + 8)])
def test_real_processes_are_counted_once(folder_on_disk, how, mib):
    """The kernel forgets what children did if their end is ignored: then their last bytes are unknown."""
    argv = [sys.executable, "-c", WRITER, str(folder_on_disk / "file"), how]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:

        def step():
            assert writer.stdout.readline() == "done\n"

        def on():
            writer.stdin.write("\n")
            writer.stdin.flush()

        def read():
            processes.look({int(pid): "t" for pid in _family(writer.pid)}, {})
            processes.read()

        processes = Processes("/proc")
        step()
        read()
        on()
        step()
        read()
        on()
        step()
        for _ in range(3):
            read()
        on()
    assert writer.returncode == 0
    assert processes.bytes_of(UNKNOWN) == (0, 0)
    # File systems write some blocks of their own.
    assert mib << 20 <= processes.bytes_of("t")[1] <= (mib << 20) + (256 << 10)


def _family(pid):
    return [pid, *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def folder_on_disk():
    """A folder whose bytes the kernel counts, unlike those of a tmpfs."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        before = _written()
        (Path(folder) / "probe").write_bytes(b"x" * (1 << 20))
        if _written() - before < 1 << 20:
            pytest.skip("a file system in /var/tmp whose bytes the kernel counts")
        yield Path(folder)


def _written():
    text = Path("/proc/self/io").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("write_bytes")).split()[1])
