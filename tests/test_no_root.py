"""The benchmark of what an ordinary user gets sees everything that a command may leave behind, and every wrong word."""

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benches"))

import left_behind
import no_root

UID = os.geteuid()
PLANTED = {
    "process": "proc/4711/comm",
    "cgroup": "sys/fs/cgroup/user.slice/partywall-7/cgroup.procs",
    "network namespace": "run/netns/pw0",
    "interface": "sys/class/net/pw0/owner",
    "file in /tmp": "tmp/deep/a",
    "file in /var/tmp": "var/tmp/a",
    "file in /dev/shm": "dev/shm/a",
    "file in /run": "run/lock/a",
    "pinned program": "sys/fs/bpf/partywall/a",
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_thing_of_each_kind_that_stays_is_found(tmp_path, kind):
    before = left_behind.of(UID, tmp_path / "own", tmp_path)
    path = tmp_path / PLANTED[kind]
    path.parent.mkdir(parents=True)
    path.write_text(f"{UID}\n")
    left = left_behind.after(before, lambda: left_behind.of(UID, tmp_path / "own", tmp_path), 0)
    words = "cgroup" if kind == "cgroup" else "file" if kind == "pinned program" else kind.partition(" in ")[0]
    assert any(thing.what.startswith(words) and thing.is_users for thing in left), left


def test_what_goes_again_or_is_in_the_user_s_own_folder_is_not_found(tmp_path):
    own = tmp_path / "var/tmp/own"
    (own / "run").mkdir(parents=True)
    before = left_behind.of(UID, own, tmp_path)
    looks = []

    def look():
        looks.append((own / "made").touch())
        passing = tmp_path / "tmp"
        passing.mkdir() if len(looks) == 1 else shutil.rmtree(passing, ignore_errors=True)
        (passing / "a").touch() if len(looks) == 1 else None
        return left_behind.of(UID, own, tmp_path)

    assert left_behind.after(before, look, 60) == []


def test_what_the_user_s_systemd_keeps_is_not_ours(tmp_path):
    (tmp_path / f"run/user/{UID}/systemd/transient").mkdir(parents=True)
    folders = {thing.what for thing in left_behind.of(UID, tmp_path / "own", tmp_path)}
    assert not [folder for folder in folders if "transient" in folder]


def test_things_of_others_are_reported_apart(tmp_path):
    (tmp_path / "tmp/partywall-run").mkdir(parents=True)
    (thing,) = left_behind.of(UID + 1, tmp_path / "own", tmp_path)
    assert not thing.is_users


class PlantingUser:
    """A user whose command says what a test says, and leaves what a test plants."""

    def __init__(self, root, plant):
        self.root, self.plant = root, plant

    def files(self):
        return set()

    def elsewhere(self):
        return left_behind.of(UID, self.root / "own", self.root)

    def run(self, _case):
        if self.plant:
            (self.root / "var/tmp").mkdir(parents=True)
            (self.root / "var/tmp/forgotten").touch()
        return 4, "partywall: a guard lacks CAP_BPF — run: sudo partywall guard run policy.yaml\n"


@pytest.mark.parametrize(
    ("plant", "exits", "says", "holds"),
    [
        (False, [4], "run: sudo .* guard run policy", True),
        (True, [4], "run: sudo .* guard run policy", False),
        (False, [4], "systemd-run", False),
        (False, [0], "run: sudo", False),
    ],
)
def test_a_refusal_that_leaves_a_file_or_names_another_remedy_fails(tmp_path, monkeypatch, plant, exits, says, holds):
    monkeypatch.setattr(left_behind.after, "__defaults__", (0.0,))
    case = no_root.Case("guard run", ["guard", "run"], exits, says)
    assert no_root.judged(PlantingUser(tmp_path, plant), case) is holds


def test_the_expected_remedies_are_literal():
    """What the benchmark asks for is not taken from what it judges."""
    text = Path(no_root.__file__).read_text()
    imported = [line for line in text.splitlines() if line.startswith(("import ", "from ")) and "partywall" in line]
    assert imported == ["import partywall"]
