"""Levers on groups of this host, put back byte for byte, also after kills at random moments."""

import contextlib
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from partywall.blame.findings import TICKS, findings_of, rule_of
from partywall.blame.job import BlameJob
from partywall.blame.measure import experiment, levers
from partywall.blame.measure.files import Files
from partywall.blame.measure.levers import Held, Lever, lever
from partywall.blame.measure.owners import Kind, owner_of
from partywall.blame.measure.places import undoing
from partywall.blame.measure.suspects import Suspect
from partywall.blame.measure.units import Unit
from partywall.blame.measure.victim import Counted
from partywall.blame.record import Began, BlameRecord, Place
from partywall.errors import CapabilityError, TrialError
from partywall.files import kernel_text
from partywall.host import Host
from partywall.host.settings import ledger
from partywall.host.systemd import Systemd
from partywall.sandbox import cgroups
from partywall.sandbox.runtime import Runtime
from tests.blame.records import tree
from tests.waiting import until


def contents(levers):
    return {path: kernel_text(str(path)) or "" for each in levers for path in each.owner.undo.files}


V1 = cgroups.Cgroups(v1={"cpu": Path("/c"), "blkio": Path("/b"), "freezer": Path("/f")})


def during(one: Lever, depth: float, use: float) -> dict[Path, str] | None:
    limit = one.limit(depth, use)
    assert isinstance(one.owner, Files)
    return None if limit is None else dict(one.owner.during(limit))


def test_a_quota_is_below_what_was_used_in_short_periods():
    files = Files(Kind.CPU, Path("/g"), {}, is_v2=True)
    assert during(Lever(Kind.CPU, files), 0.3, 0.5) == {Path("/g/cpu.max"): "3500 10000"}
    assert during(Lever(Kind.CPU, files), 0.3, 0.05) is None, "too little to be held"
    assert during(Lever(Kind.CPU, files, capacity=0.3), 0.3, 0.5) is None, "its own limit is lower"
    assert files.during(0.01) == {Path("/g/cpu.max"): "1000 10000"}, "a limit that is kept may be lower than any pulse"


def test_version_1_lowers_the_quota_first_and_raises_it_last(tmp_path: Path):
    tree(tmp_path, {"g/cpu.cfs_quota_us": "50000\n", "g/cpu.cfs_period_us": "100000\n"})
    one = lever(Kind.CPU, "g", cgroups.Cgroups(v1={"cpu": tmp_path}), has_systemd=False)
    assert [path.name for path in during(one, 0.5, 0.4) or ()] == ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
    assert [path.name for path in one.owner.undo.files] == ["cpu.cfs_period_us", "cpu.cfs_quota_us"]
    assert one.capacity == 0.5


def test_version_2_keeps_the_limits_of_other_disks(tmp_path: Path):
    tree(tmp_path, {"g/io.max": "8:0 rbps=1000000 wbps=max riops=max wiops=max\n"})
    groups = cgroups.Cgroups(unified=tmp_path, unified_controllers=frozenset({"cpu", "io"}))
    one, other = (lever(Kind.DISK, "g", groups, has_systemd=False, device=device) for device in ("8:0", "8:16"))
    assert list(one.owner.undo.files.values()) == ["8:0 rbps=1000000 wbps=max riops=max wiops=max"]
    assert list(other.owner.undo.files.values()) == ["8:16 rbps=max wbps=max riops=max wiops=max"]
    assert during(one, 0.5, 1e6) == {tmp_path / "g/io.max": "8:0 rbps=500000 wbps=500000"}


@pytest.mark.parametrize(
    ("cgroup", "has_systemd", "who"),
    [
        ("/system.slice/nginx.service", True, ("systemd", "nginx.service")),
        ("/system.slice/docker-12.scope", True, ("systemd", "docker-12.scope")),
        ("/system.slice/nginx.service", False, ("", "")),
        ("/system.slice/nginx.service/workers", True, ("", "")),
        ("/user.slice/user-1.slice/user@1.service/app.slice/a.service", True, ("another systemd", "a.service")),
        ("/machine/qemu-1-web.libvirt-qemu", False, ("libvirt", "1")),
        ("/machine.slice/machine-qemu\\x2d12\\x2dweb.scope/libvirt/vcpu0", True, ("libvirt", "12")),
        ("/machine.slice/machine-qemu\\x2d12\\x2dweb.scope", True, ("libvirt", "12")),
        ("/docker/12", True, ("", "")),
    ],
)
def test_owners_are_found_by_the_path(cgroup: str, has_systemd: bool, who: tuple[str, str]):
    assert owner_of(cgroup, has_systemd=has_systemd) == who


def test_what_a_users_systemd_owns_and_the_root_are_refused_with_a_remedy(tmp_path: Path):
    name = "user@1.service/a.service"
    tree(tmp_path, {f"{name}/cpu.cfs_quota_us": "-1\n", f"{name}/cpu.cfs_period_us": "100000\n"})
    with pytest.raises(CapabilityError, match=r"a user's own systemd owns its limits.* — name the user's slice"):
        lever(Kind.CPU, name, cgroups.Cgroups(v1={"cpu": tmp_path}), has_systemd=True)
    with pytest.raises(CapabilityError, match="the root group has no limits"):
        lever(Kind.CPU, "/", V1, has_systemd=False)
    with pytest.raises(CapabilityError, match=r"there is no /c/gone/cpu.cfs_period_us"):
        lever(Kind.CPU, "gone", V1, has_systemd=False)


def test_a_file_that_may_not_be_written_is_refused_before_anything_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tree(tmp_path, {"g/cpu.max": "max 100000\n"})
    groups = cgroups.Cgroups(unified=tmp_path, unified_controllers=frozenset({"cpu"}))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(CapabilityError, match=r"/g cannot be held: you may not write .*cpu.max — run it as root"):
        lever(Kind.CPU, "g", groups, has_systemd=False)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state"
    monkeypatch.setenv("PARTYWALL_STATE", str(folder))
    return folder


@pytest.fixture
def file_lever(tmp_path: Path) -> Lever:
    tree(tmp_path, {"g/cpu.max": "max 100000\n"})
    return Lever(Kind.CPU, Files(Kind.CPU, tmp_path / "g", {tmp_path / "g/cpu.max": "max 100000\n"}, is_v2=True))


def test_a_limit_is_taken_back_by_the_command_that_is_shown(file_lever: Lever):
    before = contents([file_lever])
    file_lever.owner.hold(0.2)
    assert contents([file_lever]) != before
    subprocess.run(["sh", "-c", undoing(file_lever)], check=True)
    after = {path: text.strip() for path, text in contents([file_lever]).items()}
    assert after == {path: text.strip() for path, text in before.items()}


@pytest.mark.parametrize(("capacity", "quota"), [(None, ""), (0.5, "50%")])
def test_a_units_limit_is_taken_back_as_it_is_set(capacity: float | None, quota: str):
    unit = Unit("my web.service", Files(Kind.CPU, Path("/c"), {}), Systemd.__new__(Systemd), ())
    said = undoing(Lever(Kind.CPU, unit, capacity))
    assert said == f"systemctl set-property --runtime 'my web.service' CPUQuota={quota}"


@pytest.mark.usefixtures("state")
def test_levers_are_put_back_at_the_end_and_after_an_error(file_lever: Lever):
    before = contents([file_lever])
    with Held({"a": file_lever}) as held:
        assert held.hold("a", 0.3, 1.0)
        assert contents([file_lever]) != before
        held.release("a")
        assert contents([file_lever]) == before
    with contextlib.suppress(KeyError), Held({"a": file_lever}) as held:
        held.hold("a", 0.3, 1.0)
        held.hold("another", 0.3, 1.0)
    assert contents([file_lever]) == before


def test_a_second_experiment_is_refused(state: Path, file_lever: Lever):
    code = f"{_SCRIPT}\nwith Held(levers) as held:\n{_WAIT}"
    with _experiment(code, [file_lever]) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(TrialError, match=f"process {other.pid} has set the limits of suspects"), Held({}):
            pass
    until(lambda: not (state / ledger.LEVERS).exists())


def test_the_watchdog_puts_everything_back_if_the_experiment_hangs(state: Path, file_lever: Lever):
    code = f"{_SCRIPT}\nwith Held(levers) as held:\n  held.hold('0', 0.3, 1.0)\n{_WAIT}"
    before = contents([file_lever])
    with _experiment(code, [file_lever]) as hung:
        assert hung.stdout.readline() == "held\n"
        assert contents([file_lever]) != before
        until(lambda: contents([file_lever]) == before)
        assert hung.poll() is None
    until(lambda: not (state / ledger.LEVERS).exists())


@pytest.mark.usefixtures("state")
def test_pulses_that_the_watchdog_undid_because_the_experiment_was_late_are_set_again(
    file_lever: Lever, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(levers, "PATIENCE_S", 0.2)
    before = contents([file_lever])
    with Held({"a": file_lever}) as held:
        held.hold("a", 0.3, 1.0)
        during = contents([file_lever])
        held.beat()
        assert (held.undone, during != before) == (0, True)
        until(lambda: contents([file_lever]) == before)
        deadline = time.monotonic() + 10
        while not held.undone:
            assert time.monotonic() < deadline, "nobody told that the pulse was undone"
            held.beat()
            time.sleep(0.01)
        assert contents([file_lever]) == during
        held.beat()
        assert held.undone == 1
    assert contents([file_lever]) == before


class Stalls(Counted):
    """A victim that stops this process once, for longer than the watchdog waits."""

    unit = "none"

    def __init__(self) -> None:
        self.reads = 0

    def read(self, now_ns: int) -> tuple[float, float]:
        self.reads += 1
        if self.reads == 100:
            time.sleep(0.6)
        return now_ns / 1e6, now_ns / 1e9

    def pids(self) -> list[int]:
        return []

    def ended(self) -> str:
        return ""


@pytest.mark.usefixtures("state")
def test_a_slot_in_which_pulses_were_undone_does_not_count(
    tmp_path: Path, file_lever: Lever, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(levers, "PATIENCE_S", 0.2)
    monkeypatch.setattr(experiment, "PATIENCE_S", 0.2)
    job = BlameJob(victim="x", pulse_ns=20_000_000, budget_ns=1_600_000_000, harm=1.0)
    record, said = BlameRecord.create(tmp_path / "record", job, {}), list[object]()
    suspect = Suspect("a", file_lever, lambda: time.monotonic() / 2, Place(folder="", is_v2=True))
    experiment.Experiment(job, rule_of(job, 1), Stalls(), [suspect], record, said.append, Host({})).run()
    slots = list(record.slots())
    silent = [slot for slot in slots if slot.ticks == (None,) * TICKS]
    assert len(slots) > 60
    assert any(slot.length_ns > 500_000_000 for slot in silent)
    assert [slot for slot in slots if slot.length_ns > 200_000_000 and slot not in silent] == []
    assert any("does not count" in str(each) for each in said)


class Silent(Stalls):
    """A victim that says nothing before the first look, or never."""

    def __init__(self, *, is_mute: bool) -> None:
        super().__init__()
        self.is_mute, self.asked = is_mute, 0

    def rate(self, before: tuple[float, float], after: tuple[float, float]) -> float | None:
        self.asked += 1
        return None if self.is_mute or self.asked < 300 else super().rate(before, after)


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("is_mute", [False, True])
def test_a_victim_that_says_nothing_at_first_is_looked_at_later(tmp_path: Path, file_lever: Lever, is_mute: bool):
    job = BlameJob(victim="x", pulse_ns=20_000_000, budget_ns=4_000_000_000, harm=1.0)
    record, said = BlameRecord.create(tmp_path / "record", job, {}), list[object]()
    place = Place(folder="", is_v2=True)
    suspect = Suspect("a", file_lever, lambda: time.monotonic() / 2, place)
    record.stream.append(Began(names=("a",), places=(place,)))
    rule = rule_of(job, 1)
    experiment.Experiment(job, rule, Silent(is_mute=is_mute), [suspect], record, said.append, Host({})).run()
    assert any("nothing can be said yet: " in str(each) for each in said)
    if is_mute:
        with pytest.raises(TrialError, match="nothing can be said: the victim's rate is not known in any slot"):
            findings_of(record)
    else:
        assert findings_of(record).suspects[0].name == "a"


def test_the_next_start_puts_back_what_a_killed_experiment_and_a_killed_watchdog_left(state: Path, file_lever: Lever):
    code = f"{_SCRIPT}\nwith Held(levers) as held:\n  held.hold('0', 0.3, 1.0)\n{_WAIT}".replace(
        "'held'", "held._dog.pid"
    )
    before = contents([file_lever])
    with _experiment(code, [file_lever]) as killed:
        dog = int(killed.stdout.readline())
        os.kill(dog, signal.SIGKILL)
        killed.kill()
        killed.wait()
        assert contents([file_lever]) != before
    assert (state / ledger.LEVERS).exists()
    assert ledger.put_back().files
    assert contents([file_lever]) == before


_SCRIPT = """
import itertools, pickle, random, sys, time
from partywall.blame.measure.levers import Held
levers = {str(n): pickle.loads(bytes.fromhex(text)) for n, text in enumerate(sys.argv[1:])}
"""
_WAIT = "  print('held', flush=True)\n  time.sleep(60)\n"


@contextlib.contextmanager
def _experiment(code: str, levers: list[Lever]) -> Iterator[subprocess.Popen[str]]:
    texts = [pickle.dumps(each).hex() for each in levers]
    with subprocess.Popen([sys.executable, "-c", code, *texts], stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


@pytest.fixture
def groups_here() -> Iterator[list[Lever]]:
    """Two groups of this host with levers: one without limits, one with a CPU limit of its own."""
    here = cgroups.read()
    if os.geteuid() or here.why_not():
        pytest.skip("no right to make cgroups")
    made = [f"/partywall-blame-{os.getpid()}-{n}" for n in range(2)]
    folders = [folder for name in made for folder in here.paths(name) if folder.parent.exists()]
    for folder in folders:
        folder.mkdir()
    try:
        limited = here.folder("cpu", made[1])
        if here.is_v2:
            (limited / "cpu.max").write_text("60000 100000")
        else:
            (limited / "cpu.cfs_quota_us").write_text("60000")
        kinds = [(Kind.CPU, made[0]), (Kind.CPU, made[1]), (Kind.FREEZE, made[0])]
        yield [lever(kind, name, here, has_systemd=False) for kind, name in kinds]
    finally:
        for folder in folders:
            folder.rmdir()


_PULSES = """
with Held(levers) as held:
  print('held', flush=True)
  for n in itertools.count():
    held.beat()
    for name in levers:
      held.hold(name, 0.3 + 0.01 * (n % 30), 0.5) if random.random() < 0.5 else held.release(name)
    time.sleep(random.random() * 0.002)
"""


@pytest.mark.host
def test_kills_at_random_moments_leave_every_file_byte_for_byte(state: Path, groups_here: list[Lever]):
    before, chance, was_changed = contents(groups_here), random.Random(53), False
    for _ in range(12):
        with _experiment(_SCRIPT + _PULSES, groups_here) as running:
            assert running.stdout.readline() == "held\n"
            deadline = time.monotonic() + chance.random() * 0.1
            while time.monotonic() < deadline:
                was_changed |= contents(groups_here) != before
            running.kill()
            running.wait()
            until(lambda: not (state / ledger.LEVERS).exists())
            assert contents(groups_here) == before
    assert was_changed, "no pulse was ever seen"


@pytest.fixture
def container(tmp_path: Path) -> Iterator[list[Lever]]:
    """The lever of a container that crun started with half a CPU."""
    here = cgroups.read()
    if os.geteuid() or here.why_not() or shutil.which("crun") is None:
        pytest.skip("no right to make cgroups, or no crun")
    name = f"partywall-blame-{os.getpid()}"
    runtime = Runtime.choose(tmp_path, here, prefer="crun")
    for folder in ("proc", "dev"):
        (tmp_path / "root" / folder).mkdir(parents=True)
    binds = [path for path in map(Path, ("/bin", "/lib", "/lib64", "/usr")) if path.exists()]
    mounts = [
        {"destination": str(path), "type": "bind", "source": str(path.resolve()), "options": ["bind", "ro"]}
        for path in binds
    ]
    config = {
        "ociVersion": "1.0.2",
        "root": {"path": "root"},
        "process": {"args": ["/bin/sleep", "1000"], "cwd": "/", "user": {"uid": 0, "gid": 0}},
        "linux": {
            "cgroupsPath": f"/{name}",
            "namespaces": [{"type": "pid"}, {"type": "mount"}],
            "resources": {"cpu": {"quota": 50_000, "period": 100_000}},
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            *mounts,
        ],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    # The container keeps the streams of whoever starts it.
    argv = [*runtime.prefix, "run", "--detach", "--bundle", str(tmp_path), name]
    subprocess.run(
        argv, check=True, timeout=20, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield [lever(kind, name, here, has_systemd=False) for kind in (Kind.CPU, Kind.FREEZE)]
    finally:
        runtime.run("delete", "--force", name)


@pytest.mark.host
def test_kills_leave_a_container_of_an_oci_runtime_byte_for_byte(state: Path, container: list[Lever]):
    before = contents(container)
    assert "50000" in "".join(before.values()), "the runtime has set its limit"
    for _ in range(6):
        with _experiment(_SCRIPT + _PULSES, container) as running:
            assert running.stdout.readline() == "held\n"
            until(lambda: contents(container) != before)
            running.kill()
            running.wait()
            until(lambda: not (state / ledger.LEVERS).exists())
            assert contents(container) == before
