"""The lever that moves suspects off the victim's CPUs, and what they use of them."""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from partywall.blame.decide import State
from partywall.blame.findings import expect_depth, last_look, rule_of
from partywall.blame.job import BlameJob
from partywall.blame.measure.files import Files
from partywall.blame.measure.levers import Held, Lever, lever
from partywall.blame.measure.owners import Kind
from partywall.blame.measure.places import undoing
from partywall.blame.measure.suspects import Found, Suspect, cpus_of, expect_moves
from partywall.blame.measure.units import Unit, mask
from partywall.blame.paste import paste
from partywall.blame.record import Place, Slot
from partywall.errors import CapabilityError, UsageError
from partywall.host import Host
from partywall.host.systemd import Systemd
from partywall.sandbox import cgroups
from partywall.units import parse_cpus
from tests.blame.records import tree

SPIN = "while True: pass"


def version_2(root: Path) -> cgroups.Cgroups:
    return cgroups.Cgroups(unified=root, unified_controllers=frozenset({"cpu", "cpuset"}))


def moved(name: str, groups: cgroups.Cgroups, victims: set[int]) -> Lever:
    return lever(Kind.CPUSET, name, groups, has_systemd=False, victims=victims)


def test_a_suspect_is_moved_to_its_other_cpus_and_back_to_what_it_had(tmp_path: Path):
    tree(tmp_path, {"g/cpuset.cpus": "0-3\n"})
    one = moved("g", version_2(tmp_path), {1, 2})
    assert isinstance(one.owner, Files)
    assert (one.limit(0.3, 0.0), one.owner.during(0.0)) == (0.0, {tmp_path / "g/cpuset.cpus": "0,3"})
    one.owner.hold(0.0)
    one.owner.release()
    assert (tmp_path / "g/cpuset.cpus").read_text() == "0-3\n"


def test_a_group_that_inherits_its_cpus_is_refused_because_the_kernel_would_not_take_them_back(tmp_path: Path):
    tree(tmp_path, {"g/cpuset.cpus": "\n"})
    with pytest.raises(CapabilityError, match=r"it has no CPUs of its own.* — give it some, such as docker update"):
        moved("g", version_2(tmp_path), {0})


def test_version_1_refuses_a_group_whose_own_groups_have_cpus(tmp_path: Path):
    tree(tmp_path, {"g/cpuset.cpus": "0-1\n", "h/cpuset.cpus": "0-1\n", "h/below/cpuset.cpus": "0\n"})
    groups = cgroups.Cgroups(v1={"cpuset": tmp_path})
    one = moved("g", groups, {0})
    assert isinstance(one.owner, Files)
    assert one.owner.cpus == (1,)
    with pytest.raises(CapabilityError, match="groups below it have CPUs of their own — name one of these"):
        moved("h", groups, {0})


@pytest.mark.parametrize(("release", "is_refused"), [("6.1.0-13-amd64", True), ("6.2.0", False), ("7.0", False)])
def test_a_kernel_that_forgets_where_programs_are_pinned_moves_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, is_refused: bool
):
    monkeypatch.setattr(platform, "release", lambda: release)
    own = sorted(os.sched_getaffinity(0))
    # This process may run on one CPU more than it says.
    tree(tmp_path, {"g/cpuset.cpus": f"{own[0]},4095\n", "g/cgroup.procs": f"{os.getpid()}\n"})
    if is_refused:
        with pytest.raises(CapabilityError, match=r"its programs are pinned, which this kernel would forget"):
            moved("g", version_2(tmp_path), {own[0]})
    else:
        moved("g", version_2(tmp_path), {own[0]})


@pytest.mark.parametrize(
    ("victims", "why"),
    [
        ({0, 1}, "the victim may run on every CPU that it has — pin the victim"),
        ({2}, "it may not run on the victim's CPUs — name another suspect"),
    ],
)
def test_a_move_that_would_change_nothing_or_has_no_place_is_refused(tmp_path: Path, victims: set[int], why: str):
    tree(tmp_path, {"g/cpuset.cpus": "0-1\n"})
    with pytest.raises(CapabilityError, match=f"/g cannot be held: {why}"):
        moved("g", version_2(tmp_path), victims)


def test_a_group_without_the_controller_is_refused(tmp_path: Path):
    tree(tmp_path, {"g/cpu.max": "max 100000\n"})
    with pytest.raises(CapabilityError, match=r"there is no .*/g/cpuset.cpus"):
        moved("g", version_2(tmp_path), {0})


def test_a_victim_whose_cpus_are_not_known_is_refused_only_when_it_runs(tmp_path: Path):
    tree(tmp_path, {"g/cpuset.cpus": "0-1\n"})
    one = moved("g", version_2(tmp_path), set())
    found = Found((Suspect("/g", one, lambda: 0.0, Place(folder="", is_v2=True)),), ())
    with pytest.raises(UsageError, match="none of its processes is known on this host — use --lever cpu"):
        expect_moves(BlameJob(victim="x", lever="cpuset"), found)
    expect_moves(BlameJob(victim="x"), found)


def test_the_victims_cpus_are_those_of_its_processes_and_their_children_with_whole_cores():
    own = os.sched_getaffinity(0)
    child = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(child) as started:
        try:
            assert cpus_of([os.getpid(), 2**22], Host({})) == own
            os.sched_setaffinity(started.pid, {min(own)})
            assert cpus_of([started.pid], Host({})) == {min(own)}
            places = [{"cpu": min(own), "siblings": [min(own), 4095]}]
            assert cpus_of([started.pid], Host({"cpu": {"places": places}})) == {min(own), 4095}
        finally:
            started.kill()


@pytest.mark.parametrize(("cpus", "bits"), [((), []), ((0,), [1]), ((1, 8), [2, 1]), ((23,), [0, 0, 128])])
def test_systemd_has_cpus_as_bits(cpus: tuple[int, ...], bits: list[int]):
    assert mask(cpus) == bits


def test_a_units_cpus_are_taken_back_as_they_are_set():
    files = Files(Kind.CPUSET, Path("/c"), {}, is_v2=True, cpus=(1,))
    unit = Unit("my web.service", files, Systemd.__new__(Systemd), (("AllowedCPUs", ("ay", [5])),))
    assert undoing(Lever(Kind.CPUSET, unit)) == "systemctl set-property --runtime 'my web.service' AllowedCPUs=0,2"
    assert "AllowedCPUs of my web.service" in unit.writes


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ({"tool": "systemd", "known_as": "w.service"}, "systemctl set-property --runtime w.service AllowedCPUs=1,3"),
        ({"tool": "docker", "known_as": "4f2"}, "docker update --cpuset-cpus 1,3 4f2"),
        ({"folder": "/c/my batch"}, "echo 1,3 > '/c/my batch'/cpuset.cpus"),
    ],
)
def test_what_helps_is_a_move_by_the_owner(place: dict, text: str):
    given = {"folder": "/c/g", "is_v2": True, "cpus": [1, 3]} | place
    assert paste(Place.model_validate(given), 0.0) == text


@pytest.mark.parametrize("lever", ["cpuset", "freeze"])
def test_levers_without_a_depth_take_everything_and_count_as_such(lever: str):
    whole, part = (BlameJob.model_validate({"victim": "x", "lever": each}) for each in (lever, "cpu"))
    assert rule_of(whole, 1).depth == rule_of(whole, 1).deepest == 1
    assert rule_of(whole, 1).blocks_most < rule_of(part, 1).blocks_most, "--harm is used up sooner"
    expect_depth(whole)
    with pytest.raises(UsageError, match=f"--lever {lever} knows no depth — leave out --deepest"):
        expect_depth(BlameJob.model_validate({"victim": "x", "lever": lever, "deepest": 0.9}))


def test_a_suspect_that_works_on_elsewhere_is_held_all_the_same():
    rule = rule_of(BlameJob(victim="x", lever="cpuset", harm=1.0), 1)
    pulsed = rule.code.blocks(6)[:, 0].astype(float)
    chance = np.random.default_rng(1)
    ticks = np.repeat(1 + 0.3 * pulsed, 4) + chance.normal(0, 0.02, 4 * len(pulsed))
    slots = [
        Slot(start_ns=at * 10**8, length_ns=10**8, depths=(depth,), use=(1.0,), ticks=tuple(ticks[4 * at : 4 * at + 4]))
        for at, depth in enumerate(pulsed)
    ]
    look = last_look(rule, ["/g"], slots)
    assert [(each.suspect, each.state, each.held) for each in look.standings] == [("/g", State.GUILTY, 1.0)]


@pytest.fixture
def spinning() -> Iterator[str]:
    """A group of this host whose program may use all CPUs."""
    here, cpus = cgroups.read(), sorted(os.sched_getaffinity(0))
    if os.geteuid() or here.why_not() or len(cpus) < 2:
        pytest.skip("no right to make cgroups, or only one CPU")
    if not here.is_v2 and "cpuset" not in here.v1:
        pytest.skip("no cpuset controller")
    name = f"/partywall-cpuset-{os.getpid()}"
    folders = dict.fromkeys(here.folder(each, name) for each in ("cpu", "cpuset"))
    if not here.is_v2 and "cpuacct" in here.v1:
        folders[here.v1["cpuacct"] / name.strip("/")] = None
    for folder in folders:
        folder.mkdir(exist_ok=True)
    for file in () if here.is_v2 else ("cpuset.cpus", "cpuset.mems"):
        folder = here.folder("cpuset", name)
        (folder / file).write_text((folder.parent / file).read_text())
    with subprocess.Popen([sys.executable, "-c", SPIN]) as busy:
        try:
            for folder in folders:
                (folder / "cgroup.procs").write_text(str(busy.pid))
            yield name
        finally:
            busy.kill()
            busy.wait()
            for folder in folders:
                folder.rmdir()


@pytest.mark.host
def test_a_moved_suspect_uses_nothing_of_the_victims_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spinning: str
):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path))
    here, cpus = cgroups.read(), sorted(os.sched_getaffinity(0))
    file = here.folder("cpuset", spinning) / "cpuset.cpus"
    before = file.read_text()
    try:
        one = moved(spinning, here, {cpus[0]})
    except CapabilityError:
        pytest.skip("no cpuset controller")
    victims = here.v1["cpuacct"] / spinning.strip("/") / "cpuacct.usage_percpu" if "cpuacct" in here.v1 else None
    with Held({"a": one}) as held:
        assert held.hold("a", 1.0, 0.5)
        assert parse_cpus(file.read_text().strip()) == tuple(set(parse_cpus(before.strip())) - {cpus[0]})
        if victims is not None:
            time.sleep(0.1)
            was = int(victims.read_text().split()[cpus[0]])
            time.sleep(0.5)
            assert int(victims.read_text().split()[cpus[0]]) - was < 20_000_000
    assert file.read_text() == before
