"""A device of the host's as a guest's disk: what it may hold, who else may have it, and what is left on it."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from partywall.errors import CapabilityError
from partywall.host import Host
from partywall.host.label import Label
from partywall.run.check import loads
from partywall.run.plan.requirements import sandboxes
from partywall.sandbox import Settings, make, qemu, reaper
from partywall.sandbox.document import Disk
from partywall.sandbox.qemu import disk, needs
from tests.guests import ACCEL

TOOLS = ("losetup", "mkfs.ext4", "blkid", "wipefs", "mount")
# Disk kernels leave half a gigabyte free. The file below has holes, so it takes no such room.
SIZE = 1 << 30


def lacking():
    if os.geteuid() != 0:
        return "root"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return ", ".join(missing)
    free = subprocess.run(["losetup", "-f"], capture_output=True, check=False)
    return "" if free.returncode == 0 else "loop devices"


pytestmark = [pytest.mark.host, pytest.mark.skipif(bool(lacking()), reason=f"a device to try needs: {lacking()}")]


@pytest.fixture
def device(tmp_path):
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(SIZE)
    result = subprocess.run(["losetup", "-f", "--show", str(image)], capture_output=True, text=True, check=True)
    path = Path(result.stdout.strip())
    yield path
    subprocess.run(["losetup", "-d", str(path)], check=True)


def formatted(device):
    subprocess.run(["mkfs.ext4", "-q", "-F", "-L", "theirs", str(device)], check=True)


def signatures(device):
    return subprocess.run(["blkid", "-p", str(device)], capture_output=True, text=True, check=False).stdout


def test_what_is_no_block_device_is_refused_by_what_it_is(tmp_path):
    (tmp_path / "file").touch()
    assert "is not a block device" in disk.unusable(tmp_path / "file", overwrite=True)
    assert "does not exist" in disk.unusable(tmp_path / "nothing", overwrite=True)


def test_an_empty_device_is_claimed_while_it_is_a_disk_and_left_empty(device):
    assert disk.unusable(device, overwrite=False) == ""
    claimed = disk.Device(device, overwrite=False)
    assert 'TYPE="ext4"' in signatures(device)
    with pytest.raises(CapabilityError, match="is in use"):
        disk.Device(device, overwrite=True)
    mounted = subprocess.run(["mount", str(device), "/mnt"], capture_output=True, check=False)
    assert mounted.returncode != 0
    claimed.release()
    claimed.release()
    assert signatures(device) == ""


def test_what_a_killed_run_left_is_made_again_and_what_is_not_ours_needs_a_word(device):
    killed = disk.Device(device, overwrite=False)
    os.close(killed._claim)
    assert disk.unusable(device, overwrite=False) == ""
    formatted(device)
    why = disk.unusable(device, overwrite=False)
    assert "holds ext4 called 'theirs'; add overwrite: true" in why
    with pytest.raises(CapabilityError, match="holds ext4"):
        disk.Device(device, overwrite=False)
    assert "theirs" in signatures(device)
    disk.Device(device, overwrite=True).release()


def test_a_partition_table_is_something_that_would_be_lost(device):
    entry = bytes([0, 0, 2, 0, 0x83, 0, 0, 0]) + (2048).to_bytes(4, "little") + (4096).to_bytes(4, "little")
    with device.open("r+b") as file:
        file.write(bytes(446) + entry + bytes(48) + b"\x55\xaa")
    assert "a partition table (dos)" in disk.unusable(device, overwrite=False)


def test_a_mounted_device_is_refused_whatever_is_said(device, tmp_path):
    formatted(device)
    place = tmp_path / "place"
    place.mkdir()
    subprocess.run(["mount", str(device), str(place)], check=True)
    try:
        assert "is in use (mounted" in disk.unusable(device, overwrite=True)
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_device_that_cannot_be_is_reported_by_key_before_anything_is_made(tmp_path):
    scenario = loads(f"""
partywall: 1
name: s
victims:
  v:
    probe: disk-direct-write
    sandbox: {{backend: qemu, disk: {{device: /dev/partywall-{tmp_path.name}}}}}
""")
    (reported,) = needs.lacking_devices(sandboxes(scenario))
    assert str(reported).startswith(f"victims.v.sandbox.disk.device: /dev/partywall-{tmp_path.name} does not exist")


@pytest.mark.skipif(bool(qemu.lacking(Host.here())), reason=f"a guest needs: {qemu.lacking(Host.here())}")
def test_a_guest_works_on_the_device_and_leaves_it_empty(device, tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    label = Label.create(f"test-device-{os.getpid()}", tmp_path)
    sandbox = make(Settings(name="guest", backend="qemu", accel=ACCEL, cpus=(0,), disk=Disk(device=str(device))), label)
    slices = []
    try:
        client = sandbox.start(lambda method, params: slices.extend(params["slices"]) if method == "slices" else None)
        work = {"kernel": {"name": "disk-direct-write", "params": {"file_bytes": 4 << 20}}}
        written = sectors_written(device)
        client.call("workload.start", timeout_s=60, id="w", work=work, pace="flat_out", work_dir=sandbox.work_dir)
        deadline = time.monotonic() + 60
        while sum(each["work"] for each in slices) == 0:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert sectors_written(device) - written >= (1 << 20) // 512
        assert not (label.work / "guest" / "disk.img").exists()
    finally:
        sandbox.stop()
        reaper.clean(label)
    assert signatures(device) == ""


def sectors_written(device):
    return int(Path(f"/sys/block/{device.name}/stat").read_text().split()[6])
