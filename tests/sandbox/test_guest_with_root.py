"""Guests with a root of their own: programs run from it, several share one image, and nobody writes to it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from partywall.agent import binary
from partywall.host import Host
from partywall.host.label import Label
from partywall.sandbox import Settings, make, qemu, reaper
from partywall.sandbox.qemu import root
from tests import root_image
from tests.guests import ACCEL
from tests.waiting import until

REAL = ("fio", "stress-ng")


def lacking():
    if os.geteuid() != 0:
        return "root"
    return qemu.lacking(Host.here())


pytestmark = [pytest.mark.host, pytest.mark.skipif(bool(lacking()), reason=f"guests need: {lacking()}")]


@pytest.fixture
def label(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    made = Label.create(f"test-root-{os.getpid()}", Path("/var/tmp"))
    yield made
    reaper.clean(made)


@pytest.fixture
def image(tmp_path, monkeypatch):
    """An image of one static program, made by hand: building a real one takes a minute and a network."""
    recipe = root.Recipe((), "none", ())
    monkeypatch.setattr(root.Recipe, "of", classmethod(lambda _cls, *_: recipe))
    monkeypatch.setattr(root, "SHARED_CACHE", tmp_path / "shared")
    tree = tmp_path / "tree" / "usr" / "bin"
    tree.mkdir(parents=True)
    shutil.copy(binary.find(), tree / "tool")
    folder = root.SHARED_CACHE / "guest-roots" / recipe.key
    folder.mkdir(parents=True)
    (folder / "root.ext4").touch()
    os.truncate(folder / "root.ext4", 160 << 20)
    subprocess.run(
        ["mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-d", tmp_path / "tree", folder / "root.ext4"], check=True
    )
    (folder / "recipe.json").write_text(json.dumps({"packages": [], "programs": ["tool"]}))
    return folder / "root.ext4"


def test_guests_share_a_root_that_none_of_them_writes(label, image):
    before = image.read_bytes()
    settings = [
        Settings(name=f"guest{n}", backend="qemu", accel=ACCEL, cpus=(0,), command=True, root=(), files=n == 0)
        for n in (0, 1)
    ]
    guests = [make(each, label) for each in settings]
    lines = {guest.settings.name: [] for guest in guests}

    def sink(name):
        return lambda method, params: lines[name].extend(params["lines"] if method == "output" else ())

    try:
        for guest in guests:
            guest.launch(sink(guest.settings.name))
        for guest in guests:
            guest.start(sink(guest.settings.name))
            argv = ["tool", "peer", "--listen", "127.0.0.1:4000", "udp-send"]
            work = {"command": {"argv": argv, "env": {}, "warm_up_ns": 0}}
            guest.client.call("workload.start", id="w", work=work, pace="flat_out", work_dir=guest.work_dir)
        for name in lines:
            assert until(lambda name=name: lines[name], within_s=60.0)[0]["text"] == "127.0.0.1:4000"
    finally:
        for guest in guests:
            guest.stop()
    assert image.read_bytes() == before
    # What a guest wrote lay in a file without a name.
    assert [path.name for path in label.work.iterdir()] == ["guest0"]


def test_a_program_that_is_not_in_the_root_is_reported(label, image):
    guest = make(
        Settings(name="guest", backend="qemu", accel=ACCEL, cpus=(0,), command=True, root=(), files=False), label
    )
    try:
        guest.start(lambda *_: None)
        work = {"command": {"argv": ["fio"], "env": {}, "warm_up_ns": 0}}
        with pytest.raises(Exception, match=r"fio.* could not be started.*check that it is installed"):
            guest.client.call("workload.start", id="w", work=work, pace="flat_out", work_dir=guest.work_dir)
    finally:
        guest.stop()
    assert image.exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
@root_image.needed(*REAL)
def test_fio_and_stress_ng_run_in_guests_as_victim_and_neighbour(tmp_path):
    (tmp_path / "tools.yaml").write_text(
        json.dumps(
            {
                "partywall": 1,
                "name": "tools",
                "victims": {
                    "fio": {
                        "command": [
                            "fio",
                            "--name=victim",
                            "--filename=f",
                            "--size=8m",
                            "--rw=randread",
                            "--bs=8k",
                            "--direct=1",
                            "--thread",
                            "--time_based",
                            "--runtime=1d",
                            "--output-format=terse",
                            "--terse-version=3",
                            "--status-interval=100ms",
                        ],
                        "metric": {"csv_column": 5, "kind": "total", "scale": 1024, "unit": "B/s"},
                        "sandbox": {"backend": "qemu", "root": list(REAL)},
                    }
                },
                "aggressors": {
                    "cpu": {
                        "command": ["stress-ng", "--cpu", "1", "--timeout", "0"],
                        "sandbox": {"backend": "qemu", "root": list(REAL), "cpus": "same"},
                    }
                },
                "timing": {"slot": "600ms", "guard": "100ms"},
                "min_blocks": 8,
                "budget": "24s",
            }
        )
    )
    command = [sys.executable, "-m", "partywall", "run", "tools.yaml", "--allow-commands", "--out", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    findings = json.loads((tmp_path / "run" / "findings.json").read_text())
    cells = {cell["aggressor"]: cell for cell in findings["cells"]}
    assert "cpu" in cells, (findings["incomplete"], done.stdout)
    cell = cells["cpu"]
    assert cell["baseline_rate"]["value"] > 0
    assert cell["isolation"]["value"] < 1
    assert cell["used"] > cell["used_off"]
