"""Every recorded host through facts, doctor, checks and plans; and that what is wrong with one is found."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labs.hosts import record
from partywall.run.plan import Topology
from partywall.testing import Entry, Tree, read, recorded
from tests.hosts import judge, topology

RECORDER = Path(__file__).parents[2] / "labs" / "hosts" / "record.py"


@pytest.mark.long
@pytest.mark.parametrize("name", judge.names())
def test_a_host_is_reported_rightly_and_planned_for_without_a_crash(name):
    assert judge.judge(judge.load(name)) == []


@pytest.mark.parametrize("name", judge.names())
def test_a_tree_says_where_it_is_from(name):
    comments = [line for line in (judge.TREES / f"{name}.tree").read_text().splitlines() if line.startswith("#")]
    assert (
        sum(word in " ".join(comments) for word in ("Recorded by labs/hosts/record.py", "Composed, not recorded")) == 1
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("topology", "allowed", "0-2"),
        ("topology", "packages", ["0", "1"]),
        ("topology", "cores", 1),
        ("topology", "last_level_groups", ["0", "1"]),
        ("cgroup", "mode", "v1"),
        ("memory", "usable_bytes", 1),
        ("memory", "limit", "/sys/fs/cgroup"),
    ],
)
def test_a_wrong_count_is_found(tmp_path, part, key, value):
    host = judge.load("debian-13-vm")
    host.tree.lay_out(tmp_path)
    expected = host.expected | {part: host.expected[part] | {key: value}}
    complaints = list(judge.counts(recorded(tmp_path, []), expected))
    assert any(complaint.startswith(f"{key} is ") for complaint in complaints)


CPU, NODE = "/sys/devices/system/cpu", "/sys/devices/system/node"
# What is wrong in a copy of numa-smt-8, by the fact that is then told otherwise.
SPOILT = {
    "siblings": {
        f"{CPU}/cpu{cpu}/topology/{name}": group
        for cpu, group in ((0, "0,5"), (5, "0,5"), (1, "1,4"), (4, "1,4"))
        for name in ("core_cpus_list", "thread_siblings_list")
    },
    "cores": {f"{CPU}/cpu{cpu}/topology/core_id": "0" for cpu in (1, 5)},
    "threads_per_core": {f"{CPU}/cpu4/topology/core_id": "1"},
    "packages": {f"{CPU}/cpu1/topology/physical_package_id": "1", f"{CPU}/cpu5/topology/physical_package_id": "1"},
    "nodes": {f"{NODE}/node0/cpulist": "0-3", f"{NODE}/node1/cpulist": "4-7"},
    "nodes (memory)": {f"{NODE}/node1/meminfo": "Node 1 MemTotal: 8192000 kB"},
    "last_level": {f"{CPU}/cpu{cpu}/cache/index3/level": "2" for cpu in range(8)},
    "last_level_groups": {f"{CPU}/cpu{cpu}/cache/index3/shared_cpu_list": "0-7" for cpu in range(8)},
    "caches": {f"{CPU}/cpu{cpu}/cache/index0/size": "48K" for cpu in (2, 6)},
    "caches (type)": {f"{CPU}/cpu{cpu}/cache/index1/type": "Data" for cpu in range(8)},
    "caches (sharing)": {f"{CPU}/cpu{cpu}/cache/index2/shared_cpu_list": f"{cpu}" for cpu in range(8)},
    "cache sizes for planning": {f"{CPU}/cpu{cpu}/cache/index3/size": "8192K" for cpu in range(8)},
    "CPUs that planning groups": {f"{CPU}/cpu3/cache/index0/shared_cpu_list": "3"},
    "online": {f"{CPU}/online": "0-6"},
    "allowed": {"/proc/self/status": "Cpus_allowed_list:\t0-3"},
    "isolated": {f"{CPU}/isolated": "7"},
    "total_bytes": {"/proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 30000000 kB"},
}


@pytest.mark.long
@pytest.mark.parametrize("what", SPOILT)
def test_a_host_of_another_shape_than_expected_is_found(what):
    host = judge.load("numa-smt-8")
    tree = host.tree.changed({path: Entry("=", f"{text}\n") for path, text in SPOILT[what].items()})
    with judge.laid_out(tree) as root:
        complaints = list(judge.counts(recorded(root, []), host.expected))
    key = what.partition(" (")[0]
    assert [complaint for complaint in complaints if complaint.startswith(f"{key} is ") and "expected" in complaint]


@pytest.mark.long
def test_a_planner_that_groups_other_cpus_than_the_facts_is_found(monkeypatch, tmp_path):
    host = judge.load("numa-smt-8")
    host.tree.lay_out(tmp_path)
    monkeypatch.setattr(topology, "topology_of", lambda _facts: Topology((0, 1), ((0, 1),)))
    (complaint,) = judge.counts(recorded(tmp_path, []), host.expected)
    assert complaint.startswith("CPUs that planning groups is ['0-1'], expected ['0,4', ")


@pytest.mark.long
def test_a_scenario_that_cannot_be_planned_though_it_should_is_found():
    host = judge.load("one-cpu")
    complaints = judge.judge(dataclasses.replace(host, expected=host.expected | {"plannable": ["demo"]}))
    assert any("demo cannot be planned for user 0" in complaint for complaint in complaints)


@pytest.mark.long
def test_a_crash_is_found_in_every_command_that_meets_it(tmp_path):
    result = judge.load("debian-13-vm")
    result.tree.lay_out(tmp_path)
    host = recorded(tmp_path, result.expected["programs"])

    def crash(_name: str) -> None:
        raise FileNotFoundError("planted")

    complaints = list(judge.commands(dataclasses.replace(host, which=crash), tmp_path, result.expected))
    crashed = [complaint for complaint in complaints if "failed with FileNotFoundError: planted" in complaint]
    assert {complaint.split(" failed")[0] for complaint in crashed} > {"doctor", "run full --dry-run"}


@pytest.mark.long
def test_an_agent_that_reads_no_facts_is_found(monkeypatch):
    monkeypatch.setenv("PARTYWALL_AGENT", "/bin/false")
    (complaint,) = judge.judge(judge.load("debian-13-vm"))
    assert complaint.startswith("facts: partywall.errors.AgentError")


def rerecorded(root: Path) -> str:
    argv = [sys.executable, str(RECORDER), "--root", str(root)]
    return subprocess.run(argv, capture_output=True, check=True, text=True).stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "chosen"),
    [("vm-hybrid-v1", ""), ("epyc-128-holes", ""), ("odd-mounts", "my cgroups#"), ("kubernetes-pod", "")],
)
def test_what_the_recorder_writes_of_a_host_has_the_same_facts(name, chosen, tmp_path):
    """chosen: a name that the recorder replaces, in all but its odd signs."""
    host = judge.load(name)
    (tmp_path / "first").mkdir()
    host.tree.lay_out(tmp_path / "first")
    read(rerecorded(tmp_path / "first")).lay_out(tmp_path / "again")
    first, again = (recorded(tmp_path / folder, []).facts for folder in ("first", "again"))
    # Of the command line only what bears on measuring is kept.
    for facts in (first, again):
        facts["kernel"]["command_line"] = None
    assert json.loads(re.sub(r"name-\d+ #", chosen, json.dumps(again))) == first


POD = "kubepods-burstable-pod5a1c0ffe_1111_2222_3333_444455556666.slice"
ARRAY = "../devices/virtual/block/md_alicevault"
VMBUS = "../devices/LNXSYSTM:00/VMBUS:00/{}/host0/target0:0:0/0:0:0:0/block/{}"
GUIDS = ("fd1d2cbd-ce7c-535c-966b-eb5f811c95f0", "0a2b3cbd-ce7c-535c-966b-eb5f811c95f0")
OWN_CGROUP = f"/kubepods.slice/{POD}/user-31337.slice/user@31337.service/app.slice/alice-backup.scope"
MOUNTS = """\
22 1 253:0 / / rw,relatime shared:1 - ext4 /dev/mapper/alicevault-root rw,errors=remount-ro
23 22 0:21 / /sys rw,nosuid shared:7 - sysfs sysfs rw
24 22 0:22 / /proc rw,nosuid shared:14 - proc proc rw
28 23 0:25 / /sys/fs/cgroup rw,nosuid shared:8 - cgroup2 cgroup2 rw,nsdelegate
30 22 0:35 /@alicehome /home/alice rw,relatime - btrfs /dev/disk/by-label/ALICEDISK rw,subvolid=256,subvol=/@alicehome
31 30 0:36 / /home/alice/acme\\040plans rw - cifs //fileserver.acme.example/plans rw,username=alice,addr=203.0.113.7
32 30 0:37 / /home/alice/nfs rw - nfs4 [2001:db8:aaaa::17]:/export/acme rw,clientaddr=2001:db8:aaaa::18,hard
33 22 0:38 / /var/lib/acme-db rw - zfs rpool/acme-db rw,xattr
34 22 0:39 / /run/user/31337/gvfs rw - fuse.alicefs alice@bastion:/srv rw,user_id=31337
35 22 0:4 net:[4026532177] /run/netns/alice-vpn rw shared:2 - nsfs nsfs rw
36 22 0:40 / /var/lib/docker/alicebox/merged rw - overlay overlay rw,lowerdir=/home/alice/l,upperdir=/home/bob
37 22 0:41 / /home/bob rw - tmpfs acmetmp rw,size=65536k,uid=31337
"""
PLANTED = {
    "/proc/cmdline": "root=UUID=6ba7b810-9dad-11d1-80b4-00c04fd430c8 cryptdevice=alicevault ip=203.0.113.7 isolcpus=7",
    "/proc/sys/kernel/osrelease": "6.1.0-aliceslaptop-amd64",
    "/proc/sys/kernel/random/boot_id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    "/proc/self/status": "Name:\talicetool\nCpus_allowed_list:\t0-7",
    "/proc/self/cgroup": f"1:name=alicetree:/alice\n0::{OWN_CGROUP}",
    "/proc/self/mountinfo": MOUNTS,
    f"/sys/fs/cgroup{OWN_CGROUP}/memory.max": "1073741824",
    f"/sys/fs/cgroup{OWN_CGROUP}/memory.current": "1000",
    "/etc/os-release": 'ID=debian\nVERSION_ID="12"\nPRETTY_NAME="acmecorp golden image"\nHOME_URL="https://acme.example"',
    "/sys/class/dmi/id/product_serial": "SN-ACME-12345",
    "/sys/class/power_supply/hid-aa:bb:cc:dd:ee:ff-battery/type": "Battery",
    "/sys/class/net/eth0/address": "aa:bb:cc:dd:ee:ff",
    "/sys/devices/virtual/block/md_alicevault/dev": "9:127",
    "/sys/devices/virtual/block/md_alicevault/size": "1000",
    **{
        f"/sys/devices/{VMBUS.format(guid, disk)[11:]}/{file}": text
        for guid, disk, number in zip(GUIDS, ("sda", "sdb"), ("8:0", "8:16"), strict=True)
        for file, text in (("dev", number), ("size", "2000"), ("queue/scheduler", "[none]"))
    },
}
LINKS = {
    "/sys/block/md_alicevault": ARRAY,
    "/sys/dev/block/9:127": f"../{ARRAY}",
    "/sys/block/sda": VMBUS.format(GUIDS[0], "sda"),
    "/sys/dev/block/8:0": f"../{VMBUS.format(GUIDS[0], 'sda')}",
    "/sys/block/sdb": VMBUS.format(GUIDS[1], "sdb"),
    "/sys/dev/block/8:16": f"../{VMBUS.format(GUIDS[1], 'sdb')}",
}
SECRETS = ("alice", "acme", "bob", "bastion", "31337", "203.0.113", "2001:db8:aaaa", "6ba7b810", "fd1d2cbd", "0a2b3cbd")
SECRETS += ("5a1c0ffe", "aa:bb:cc", "SN-", "vpn", "rpool", "plans", "golden")


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Path:
    """A host with names of people, firms, disks and addresses wherever the recorder reads."""
    root = tmp_path_factory.mktemp("planted")
    changes = {path: Entry("=", f"{text}\n") for path, text in PLANTED.items()}
    changes |= {path: Entry("->", target) for path, target in LINKS.items()}
    judge.load("numa-smt-8").tree.changed(changes).lay_out(root)
    return root


def test_no_name_serial_number_or_address_of_a_host_is_recorded(planted):
    text = rerecorded(planted)
    assert [secret for secret in SECRETS if secret.lower() in text.lower()] == []


@pytest.mark.long
def test_a_host_without_its_names_is_read_as_before(planted, tmp_path):
    read(rerecorded(planted)).lay_out(tmp_path)
    before, after = (recorded(root, ["crun", "ssh", "qemu-system-x86_64"]) for root in (planted, tmp_path))
    assert after.facts["cpu"] == before.facts["cpu"]
    assert after.facts["missing"] == before.facts["missing"]
    assert after.usable_memory == before.usable_memory == (1 << 30) - 1000
    disks = [sorted(disk["size_bytes"] for disk in host.facts["disks"]) for host in (before, after)]
    assert disks[0] == disks[1]
    assert disks[0][:3] == [512_000, 1_024_000, 1_024_000]
    assert after.facts["memory"]["limit"]["folder"].startswith("/sys/fs/cgroup/kubepods.slice/name-")
    assert "user-1000.slice/user@1000.service/app.slice/" in after.facts["memory"]["limit"]["folder"]
    expected = judge.load("numa-smt-8").expected
    assert list(judge.commands(after, tmp_path, expected)) == list(judge.commands(before, tmp_path, expected)) == []


@settings(max_examples=300, deadline=None)
@given(name=st.from_regex(r"[a-z]{6,12}[ #.@-]{0,2}[a-z0-9]{2,6}", fullmatch=True))
def test_any_chosen_name_is_replaced_wherever_it_stands(name):
    names = record.Names()
    mounted = name.replace(" ", "\\040").replace("#", "\\043")
    options = f"rw,upperdir=/srv/{mounted},addr={mounted}"
    line = f"30 22 0:35 /{mounted} /home/{mounted} rw - ext4 /dev/mapper/{mounted} {options}\n"
    texts = [
        names.path(f"/user.slice/{name}/{name}.scope"),
        record._membership(f"1:name={name}:/{name}\n", names),
        record._mount(line, names),
        record._disk_path(f"../devices/virtual/block/{name}", names),
        record._release(f"6.1.0-{name}-amd64"),
    ]
    assert [text for text in texts if name in text or mounted in text] == []


def test_the_same_name_gets_the_same_word():
    names = record.Names()
    assert names.path("/alice/bob/alice.scope/ssh.service") == "/name-1/name-2/name-1.scope/ssh.service"


def test_a_text_is_read_line_by_line():
    tree = read(
        "# a comment\n\n/a = 1\n/b := 2\n/c |\n| one\n|\n| two\n/d :|\n| x\n/e\n/f/\n/g -> ../a\n/h ! refused\n"
        "/i{0-1,3}/j = n\n/k\\040l = m\n"
    )
    lines = {"/a": "1\n", "/b": "2", "/c": "one\n\ntwo\n", "/d": "x", "/e": "", "/k l": "m\n"}
    numbered = {f"/i{number}/j": "n\n" for number in (0, 1, 3)}
    others = {"/f": Entry("/"), "/g": Entry("->", "../a"), "/h": Entry("!", "refused")}
    assert tree.entries == {path: Entry("=", text) for path, text in (lines | numbered).items()} | others


def test_what_is_no_tree_is_reported_with_its_line():
    with pytest.raises(ValueError, match="line 2: 'nonsense' begins with no path"):
        read("/a = 1\nnonsense\n")


def test_a_laid_out_tree_has_its_files(tmp_path):
    entries = {"/a/b": Entry("=", "1\n"), "/c": Entry("->", "a/b"), "/d": Entry("!", "refused"), "/e": Entry("/")}
    Tree(entries).changed({"/e": None}).lay_out(tmp_path)
    assert (tmp_path / "c").read_text() == "1\n"
    assert not (tmp_path / "e").exists()
    with pytest.raises(OSError, match="directory"):
        (tmp_path / "d").read_text()
