"""Bundles and limits as an OCI runtime wants them: pure."""

import os
from pathlib import Path

import pytest

from partywall.errors import CapabilityError
from partywall.host.block import Throttle, device_of, lacking
from partywall.host.quota import PERIOD_US
from partywall.sandbox import Settings, cgroups, oci
from partywall.sandbox.document import Disk

MOUNTS_V1 = (
    "/sys/fs/cgroup rw - tmpfs tmpfs rw",
    "/sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
    "/sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
    "/sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
)


def config(**changes):
    settings = Settings(name="victim", backend="container", cpus=(1, 2), **changes)
    where = {"cgroup": "/partywall/run/victim", "agent": Path("/agent"), "work": Path("/var/tmp/w"), "env": {"A": "b"}}
    return oci.config(settings, device=(254, 0), v2=False, **where)


def test_a_limit_is_a_share_of_the_time_of_all_cpus_of_the_sandbox():
    assert oci.cpu((1, 2), 0.25, None, v2=False)["cpu"]["quota"] == 50_000
    assert oci.cpu((1, 2), None, None, v2=False)["cpu"]["quota"] > 2 * PERIOD_US


@pytest.mark.parametrize("weights", [(100, 100), (100, 300), (25, 500)])
def test_weights_keep_their_ratio_in_both_versions_of_cgroups(weights):
    each = [oci.cpu((0,), None, weight, v2=False)["cpu"]["shares"] for weight in weights]
    two = [int(oci.cpu((0,), None, weight, v2=True)["unified"]["cpu.weight"]) for weight in weights]
    assert each[1] / each[0] == pytest.approx(weights[1] / weights[0], rel=0.01)
    assert two[1] / two[0] == pytest.approx(weights[1] / weights[0], rel=0.01)


def test_disk_limits_name_the_disk_and_only_what_was_requested():
    limits = config(disk=Disk(read_bps=5_000_000, write_iops=100))["linux"]["resources"]["blockIO"]
    assert limits == {
        "throttleReadBpsDevice": [{"major": 254, "minor": 0, "rate": 5_000_000}],
        "throttleWriteIOPSDevice": [{"major": 254, "minor": 0, "rate": 100}],
    }


def test_memory_comes_from_the_nodes_that_are_named_and_else_from_any():
    assert config(memory_nodes=(0, 2))["linux"]["resources"]["cpu"]["mems"] == "0,2"
    assert "mems" not in config()["linux"]["resources"]["cpu"]


def test_the_root_holds_the_agent_alone_unless_a_command_is_to_run():
    def destinations(**changes):
        return {mount["destination"] for mount in config(**changes)["mounts"]}

    assert "/usr" not in destinations()
    assert "/usr" in destinations(command=True)
    assert oci.AGENT in destinations()


def test_the_container_carries_the_label_and_no_more_privilege_than_it_needs():
    made = config()["process"]
    assert "A=b" in made["env"]
    assert made["capabilities"]["effective"] == ["CAP_KILL"]
    assert made["noNewPrivileges"]


def test_the_mount_table_tells_which_version_has_the_controllers(tmp_path):
    mounts(tmp_path, *MOUNTS_V1)
    result = cgroups.read(tmp_path)
    assert not result.is_v2
    assert result.v1["cpuacct"] == tmp_path / "sys/fs/cgroup/cpu,cpuacct"
    assert tmp_path / "sys/fs/cgroup/memory/partywall/x" in result.paths("/partywall/x")

    unified = tmp_path / "unified"
    unified.mkdir()
    (unified / "cgroup.controllers").write_text("cpuset cpu io memory\n")
    mounts(tmp_path, "/unified rw - cgroup2 cgroup2 rw", "/elsewhere rw - cgroup2 cgroup2 rw")
    assert cgroups.read(tmp_path).is_v2


def test_a_partition_leads_to_its_disk(tmp_path):
    disk = tmp_path / "devices" / "vda"
    partition = disk / "vda1"
    partition.mkdir(parents=True)
    (disk / "dev").write_text("254:0\n")
    (partition / "dev").write_text("254:1\n")
    (partition / "partition").write_text("1\n")
    blocks = tmp_path / "sys/dev/block"
    blocks.mkdir(parents=True)
    device = tmp_path.stat().st_dev
    link = blocks / f"{os.major(device)}:{os.minor(device)}"
    link.symlink_to(partition)
    assert device_of(Path("/"), tmp_path) == (254, 0)
    link.unlink()
    assert device_of(Path("/"), tmp_path) is None


def test_the_table_of_mounts_tells_the_device_of_a_folder_that_cannot_be_looked_at(tmp_path):
    mounts(tmp_path, "/ rw - ext4 /dev/vda rw", "/data rw - xfs /dev/vdb rw")
    blocks = tmp_path / "sys/dev/block"
    (blocks / "0:21").mkdir(parents=True)
    (blocks / "0:21/dev").write_text("0:21\n")
    assert device_of(Path("/data/files"), tmp_path) == (0, 21)
    assert device_of(Path("/files"), tmp_path) is None


def mounts(tmp_path, *lines):
    table = tmp_path / "proc/self/mountinfo"
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text("".join(f"{number} 1 0:{number} / {line}\n" for number, line in enumerate(lines, start=20)))


def disk_at(tmp_path, number, name="254:0"):
    blocks, disk = tmp_path / "sys/dev/block", tmp_path / "devices" / f"{number}"
    disk.mkdir(parents=True, exist_ok=True)
    (disk / "dev").write_text(f"{name}\n")
    blocks.mkdir(parents=True, exist_ok=True)
    (blocks / f"{os.major(number)}:{os.minor(number)}").symlink_to(disk)


def test_an_overlay_leads_to_the_disk_of_the_folder_it_writes_into(tmp_path):
    upper, merged = tmp_path / "upper dir", Path("/merged")
    upper.mkdir()
    mounts(
        tmp_path,
        "/ rw - ext4 /dev/vda rw",
        f"{merged} rw,relatime shared:1 - overlay overlay rw,lowerdir=/l,upperdir=/upper\\040dir,workdir=/w",
    )
    disk_at(tmp_path, upper.stat().st_dev)
    assert device_of(merged, tmp_path) == (254, 0)
    assert lacking(merged, tmp_path) == ""
    upper.rmdir()
    assert device_of(merged, tmp_path) is None
    assert "/merged is on overlay" in lacking(merged, tmp_path)
    assert "--work-dir" in lacking(merged, tmp_path)


def test_of_a_btrfs_only_one_that_lies_on_a_single_device_can_be_limited(tmp_path):
    whole = next((path for path in sorted(Path("/dev").glob("*")) if path.is_block_device()), None)
    if whole is None:
        pytest.skip("there is no block device in /dev")
    pool = tmp_path / "sys/fs/btrfs/1234-5678/devices"
    (pool / whole.name).mkdir(parents=True)
    (tmp_path / "dev").symlink_to("/dev")
    mounts(tmp_path, "/ rw - ext4 /dev/root rw", f"/pool rw - btrfs {whole} rw,subvol=/@")
    disk_at(tmp_path, whole.stat().st_rdev, "7:3")
    assert device_of(Path("/pool"), tmp_path) == (7, 3)
    (pool / "another").mkdir()
    assert device_of(Path("/pool"), tmp_path) is None


def test_limits_of_a_disk_are_written_whole_and_what_is_not_limited_is_lifted():
    throttle = Throttle(read_bps=5_000_000, write_iops=100)
    assert cgroups.disk_files((254, 0), throttle, v2=True) == {
        "io.max": "254:0 rbps=5000000 wbps=max riops=max wiops=100"
    }
    assert cgroups.disk_files((254, 0), throttle, v2=False) == {
        "blkio.throttle.read_bps_device": "254:0 5000000",
        "blkio.throttle.write_bps_device": "254:0 0",
        "blkio.throttle.read_iops_device": "254:0 0",
        "blkio.throttle.write_iops_device": "254:0 100",
    }


def test_files_of_disk_limits_are_where_the_version_keeps_them_or_the_controller_is_missed_by_name():
    each = cgroups.Cgroups(v1={"cpu": Path("/c/cpu"), "blkio": Path("/c/blkio")})
    assert each.folder("io", "/partywall/r/v") == Path("/c/blkio/partywall/r/v")
    two = cgroups.Cgroups(unified=Path("/c"), unified_controllers=frozenset({"cpu", "io"}))
    assert two.folder("io", "/partywall/r/v") == Path("/c/partywall/r/v")
    without = cgroups.Cgroups(unified=Path("/c"), unified_controllers=frozenset({"cpu"}))
    with pytest.raises(CapabilityError, match="no cgroup io controller"):
        without.folder("io", "/partywall/r/v")
