"""Hosts whose files are missing, empty, garbled or not to be read: the answer is a plan or a documented error."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partywall.host import block, mounts
from partywall.host.settings import governor, idle
from partywall.sandbox import cgroups
from partywall.sandbox.container import oom_kills
from partywall.testing import Entry, Tree, fake_host, recorded
from tests.hosts import judge

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "25"))
SMALL = ("vm-hybrid-v1", "debian-13-vm", "docker-v1", "laptop", "numa-smt-8", "wsl2")
TREES = {name: judge.load(name) for name in SMALL}
PROGRAMS = ("crun", "fio", "qemu-system-x86_64", "ssh", "stress-ng")


def _numbers(word: str):
    return lambda text: re.sub(r"\d+", word, text)


FAULTS = {
    "empty": lambda _: "",
    "blank": lambda _: "\n",
    "unended": lambda text: text.rstrip("\n"),
    "max": _numbers("max"),
    "zero": _numbers("0"),
    "huge": _numbers("9" * 30),
    "twice": lambda text: text + text,
    "garbage": lambda _: "\x00\udcff\udc80 - : = ,,--\n\n- -\n",
    "half": lambda text: text[: len(text) // 2],
}


@st.composite
def spoilt(draw) -> Tree:
    """A recorded host with faults in some files, or without some folders."""
    tree = TREES[draw(st.sampled_from(SMALL))].tree
    files = sorted(path for path, entry in tree.entries.items() if entry.kind == "=")
    changes: dict[str, Entry | None] = {}
    for path in draw(st.lists(st.sampled_from(files), max_size=8, unique=True)):
        fault = draw(st.sampled_from([*FAULTS, "gone", "unreadable"]))
        text = FAULTS.get(fault, str)(tree.entries[path].text)
        changes[path] = {"gone": None, "unreadable": Entry("!")}.get(fault, Entry("=", text))
    parts = sorted(
        {"/".join(path.split("/")[:depth]) for path in files for depth in (3, 4, 6) if path.count("/") >= depth}
    )
    for folder in draw(st.lists(st.sampled_from(parts), max_size=2, unique=True)):
        changes |= dict.fromkeys((path for path in tree.entries if path.startswith(f"{folder}/")), None)
    return tree.changed(changes)


@pytest.mark.long
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(tree=spoilt(), euid=st.sampled_from([0, judge.ORDINARY_USER]))
def test_a_spoilt_host_is_reported_of_and_planned_for_without_a_crash(tree, euid):
    with judge.laid_out(tree) as root:
        host = recorded(root, PROGRAMS, euid=euid)
        complaints = list(judge.wrong("doctor", judge.ask(host, "doctor")))
        for name in ("demo", "full"):
            complaints += judge.wrong(name, judge.ask(host, "run", name, "--dry-run", "--work-dir", str(root)))
        complaints += judge.wrong("study", judge.ask(host, "study", "papers/vits", "--only", "cache", "--dry-run"))
    assert complaints == []


@pytest.mark.long
@settings(max_examples=5 * EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=st.text() | st.from_regex(r"(\d+ \d+ \S+ \S+ \S+ \S*( \S+)* - \S* \S* \S*\n){1,3}"))
def test_any_table_of_mounts_is_read(tmp_path_factory, text):
    root = tmp_path_factory.mktemp("mounts")
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(text, errors="surrogateescape")
    for mount in mounts(root):
        assert isinstance(mount.point, Path)
    assert cgroups.read(root).paths("/x") is not None
    assert block.lacking(Path("/var/tmp"), root)


def test_names_of_mounts_are_read_as_the_kernel_escapes_them(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    whole = "30 1 0:9 / /a\\040b\\011c\\012d\\134e\\043f ro,relatime - cgroup2 none rw\n"
    table = f"{whole}nonsense\n31 1 x:y / /g rw - ext4 d rw\n"
    (tmp_path / "proc/self/mountinfo").write_text(table)
    (mount,) = mounts(tmp_path)
    assert str(mount.point) == "/a b\tc\nd\\e#f"
    assert mount.read_only


@pytest.mark.parametrize(
    ("text", "killed"),
    [("oom_kill 3\n", 3), ("nr_free_pages 1\n", 0), ("oom_kill\n", 0), ("oom_kill max\n\n", 0), ("", 0), (None, 0)],
)
def test_processes_killed_for_want_of_memory_are_counted_on_any_kernel(tmp_path, text, killed):
    vmstat = tmp_path / "vmstat"
    if text is not None:
        vmstat.write_text(text)
    assert oom_kills(vmstat) == killed


def test_a_cpu_whose_governors_cannot_be_read_is_passed_over(tmp_path):
    folder = tmp_path / "sys/devices/system/cpu"
    for cpu, text in (("cpu0", "performance powersave\n"), ("cpu1", None)):
        file = folder / cpu / "cpufreq/scaling_available_governors"
        file.parent.mkdir(parents=True)
        file.mkdir() if text is None else file.write_text(text)
    host = fake_host(root=tmp_path)
    assert governor.chosen("performance", host) == "performance"
    (folder / "cpu0/cpufreq/scaling_available_governors").write_text("\n")
    assert governor.why_not("saving", host) == "there is no frequency governor ondemand or schedutil or powersave"


def test_idle_states_that_cannot_be_read_are_none(tmp_path):
    (tmp_path / "sys/devices/system/cpu/cpuidle/current_driver").mkdir(parents=True)
    assert "cpuidle" in idle.why_not(fake_host(root=tmp_path))
