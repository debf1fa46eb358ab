"""What is read of suspects."""

import re
from pathlib import Path

import pytest

from partywall.blame.job import BlameJob
from partywall.blame.measure import labels
from partywall.blame.measure.files import Files
from partywall.blame.measure.groups import shown
from partywall.blame.measure.levers import lever
from partywall.blame.measure.owners import Kind
from partywall.blame.measure.places import place_of
from partywall.blame.measure.suspects import find
from partywall.blame.measure.using import reader
from partywall.errors import UsageError
from partywall.host import Host
from partywall.sandbox import cgroups, tenants


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_bytes_of_groups_below_and_of_other_policies_of_version_1_are_a_suspects_too(tmp_path: Path):
    """A pod's own group has no process: its containers do the work. BFQ counts in files of its own."""
    files = {
        "pod/blkio.bfq.io_serviced": "",
        "pod/one/blkio.bfq.io_serviced": "8:0 Read 2\n8:0 Write 1\n8:16 Read 9\n",
        "pod/one/blkio.bfq.io_service_bytes": "8:0 Read 8192\n8:0 Write 4096\n8:0 Total 12288\n8:16 Read 999\n",
    }
    write(tmp_path, files)
    used = reader(Kind.DISK, "/pod", cgroups.Cgroups(v1={"cpu": tmp_path, "blkio": tmp_path}), "8:0")
    assert used() == 12288


def test_bytes_of_version_2_are_those_of_one_disk_whatever_else_its_line_has(tmp_path: Path):
    write(tmp_path, {"g/io.stat": "259:0 8:0 rbytes=100 wbytes=20 rios=3 wios=1 dbytes=0 dios=0\n8:16 rbytes=7\n"})
    groups = cgroups.Cgroups(unified=tmp_path, unified_controllers=frozenset({"cpu", "io"}))
    assert reader(Kind.DISK, "/g", groups, "8:0")() == 120


@pytest.mark.parametrize(
    ("cgroup", "tool", "known_as"),
    [
        (f"/docker/{'4f' * 32}", "docker", "4f" * 32),
        (f"/system.slice/docker-{'4f' * 32}.scope", "docker", "4f" * 32),
        (f"/machine.slice/libpod-{'4f' * 32}.scope", "podman", "4f" * 32),
        ("/web", "crun", "web"),
        ("/batch", "files", ""),
    ],
)
def test_the_tool_of_a_groups_owner_is_found(tmp_path: Path, cgroup: str, tool: str, known_as: str):
    """Whatever a name looks like: without a systemd, none is named."""
    (tmp_path / "run/crun/web").mkdir(parents=True)
    write(tmp_path, {f"{cgroup.strip('/')}/cpu.max": "max 100000\n"})
    groups = cgroups.Cgroups(unified=tmp_path, unified_controllers=frozenset({"cpu"}))
    held = lever(Kind.CPU, cgroup, groups, has_systemd=False)
    place = place_of(cgroup, held, groups, Host({}, tmp_path))
    assert (place.tool, place.known_as, place.is_v2) == (tool, known_as, True)


@pytest.mark.parametrize(
    ("texts", "is_one"),
    [
        (["[Service]\nExecStart=/bin/true\n"], False),
        (["[Service]\nExecStart=a %i\nExecStart=b\n[X-Partywall]\nBlame=yes\n"], True),
        (["[X-Partywall]\nBlame=yes\n", "[X-Partywall]\nBlame=no\n"], False),
        (["[X-Partywall]\nblame=yes\n"], False),
        (["no unit at all"], False),
    ],
)
def test_a_units_label_is_read_from_its_files_and_the_last_one_counts(texts: list[str], is_one: bool):
    assert labels.is_labelled(texts) is is_one


UID = "0f3a7c52-1111-4b6e-9c1d-2a2b3c4d5e6f"
POD = f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID.replace('-', '_')}.slice/cri-4f2.scope"


def crictl(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> labels.Labels:
    """The labels that a `crictl` with this script knows."""
    file = folder / "crictl"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return labels.Labels(has_systemd=False)


@pytest.mark.parametrize(
    ("of_the_pod", "said"),
    [
        ('{"partywall/blame": "yes"}', ""),
        ('{"partywall/blame": "no"}', 'is a pod without partywall/blame: "yes"; name it, or use --any'),
        ("null", 'is a pod without partywall/blame: "yes"; name it, or use --any'),
    ],
)
@pytest.mark.parametrize("path", [POD, f"/kubepods/burstable/pod{UID}/4f2"])
def test_a_pod_with_the_label_may_be_pulsed(
    path: str, of_the_pod: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pod = f'{{"id": "4f2", "metadata": {{"name": "web", "uid": "{UID}"}}, "labels": {of_the_pod}}}'
    known = crictl(tmp_path, f"echo '{{\"items\": [{pod}]}}'", monkeypatch)
    assert known.lacking(path) == said


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo no such socket >&2; exit 1", "crictl fails: no such socket"),
        ("echo hello", "crictl printed no list of pods"),
        ("echo '{\"items\": [{}]}'", 'is a pod without partywall/blame: "yes"'),
    ],
)
def test_pods_are_left_out_where_their_labels_are_not_known(
    script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert said in crictl(tmp_path, script, monkeypatch).lacking(POD)


def test_pods_are_left_out_where_there_is_no_crictl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    known = labels.Labels(has_systemd=False)
    assert known.lacking(POD) == "is a pod whose labels are not known: there is no crictl; name it, or use --any"
    assert "is no pod of its own" in known.lacking("/kubepods/burstable")
    assert known.lacking("/docker/4f2") == ""


CONTAINER = "4f" * 32


@pytest.fixture
def groups_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes groups of version 2, each with a process, and returns the host that has them."""

    def made(*paths: str) -> Host:
        files = {f"{path.strip('/')}/cpu.max": "max 100000\n" for path in paths}
        files |= {f"{path.strip('/')}/cgroup.procs": "7\n" for path in paths}
        write(tmp_path / "groups", files)
        here = cgroups.Cgroups(unified=tmp_path / "groups", unified_controllers=frozenset({"cpu", "io"}))
        monkeypatch.setattr(cgroups, "read", lambda *_: here)
        return Host({}, tmp_path)

    return made


@pytest.mark.parametrize(
    "path",
    [
        f"/docker/{CONTAINER}",
        f"/system.slice/docker-{CONTAINER}.scope",
        f"/kubelet/kubepods/burstable/pod{UID}/{CONTAINER}",
        f"/docker/{CONTAINER}/kubelet/kubepods/pod{UID}/{CONTAINER}",
        f"/machine.slice/libpod-{CONTAINER}.scope",
        f"/podman/{CONTAINER}",
    ],
)
def test_a_container_below_the_group_of_its_engine_may_be_a_suspect(path: str, groups_of):
    found = find(BlameJob(victim="x", suspects=(path,)), groups_of(path), [])
    assert [each.name for each in found.suspects] == [path]


def contained(root: Path) -> None:
    """A host on which the container 4f4f… is the pod's container shop/web-1/nginx."""
    write(root, {f"var/log/containers/web-1_shop_nginx-{CONTAINER}.log": ""})


@pytest.mark.parametrize("name", ["shop/web-1/nginx", "nginx.service", "nginx", "/docker/4f2", "docker/4f2"])
def test_a_group_is_named_as_people_know_it(name: str, groups_of, tmp_path: Path):
    container = f"/kubepods/burstable/pod{UID}/{CONTAINER}"
    unit, other = "/system.slice/nginx.service", "/docker/4f2"
    host = groups_of(container, unit, other)
    contained(tmp_path)
    found = find(BlameJob(victim="x", suspects=(name,)), host, [])
    expected = {"s": container, "n": unit}.get(name[0], other)
    assert [each.name for each in found.suspects] == [expected]
    assert shown([container], host) == [f"{container} (shop/web-1/nginx)"]
    with pytest.raises(UsageError, match="is the victim's own group"):
        find(BlameJob(group=name, suspects=(expected,)), host, [])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("batch/job/main", "there is no group batch/job/main — did you mean batch/job/other?"),
        ("nginx.servic", "there is no group nginx.servic — did you mean nginx.service"),
        ("/zzz", "there is no group /zzz — give a path as in /proc/PID/cgroup"),
        ("web", "2 groups are called web — give the path of one: /a/web, /b/web"),
    ],
)
def test_a_group_that_is_not_there_or_not_the_only_one_is_refused_in_full(name: str, said: str, groups_of, tmp_path):
    host = groups_of("/a/web", "/b/web", "/system.slice/nginx.service", f"/docker/{CONTAINER}")
    write(tmp_path, {f"var/log/containers/job_batch_other-{CONTAINER}.log": ""})
    for job in (BlameJob(victim="x", suspects=(name,)), BlameJob(group=name)):
        with pytest.raises(UsageError, match=re.escape(said)):
            find(job, host, [])


def test_who_has_no_suspect_is_told_how_many_groups_are_left_out_and_why(groups_of, monkeypatch):
    units = [f"/system.slice/u{n}.service" for n in range(3)]
    host = groups_of(*units, "/system.slice/ssh.service")
    monkeypatch.setattr(labels.Labels, "lacking", lambda *_: f"has no label in its unit; {labels.ASKED}")
    with pytest.raises(UsageError) as error:
        find(BlameJob(victim="x"), host, [])
    (problem,) = error.value.problems
    assert problem.message == (
        "there is no suspect; left out: has no label in its unit (3 groups), is never touched (1 group)"
    )
    assert "add --any" in problem.remedy


def test_a_host_without_groups_says_so(groups_of):
    with pytest.raises(UsageError, match="this host has no groups but the victim's own — run it on the host"):
        find(BlameJob(victim="x"), groups_of(), [])


def test_a_disk_is_given_by_its_name_or_number(groups_of, tmp_path: Path):
    host = groups_of("/writer")
    write(tmp_path, {"sys/class/block/sda/dev": "8:0\n", "groups/writer/io.max": "", "groups/writer/io.stat": ""})
    for device in ("sda", "8:0"):
        job = BlameJob(victim="x", suspects=("/writer",), lever="disk", device=device)
        (suspect,) = find(job, host, []).suspects
        assert suspect.place.device == "8:0"
        assert isinstance(suspect.lever.owner, Files)
        assert suspect.lever.owner.device == "8:0"
    with pytest.raises(UsageError, match="--device: there is no disk sdb — give one of sda"):
        find(BlameJob(victim="x", suspects=("/writer",), lever="disk", device="sdb"), host, [])


@pytest.mark.parametrize("odd", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\r"])
def test_a_name_with_a_character_that_ends_lines_elsewhere_is_one_path(odd: str, groups_of):
    """A tenant chooses such names. If the victim's were cut, it would be pulsed itself."""
    name, other = f"/pods/a{odd}b", "/pods/other"
    host = groups_of(name, other)
    folder = host.path("/proc/41")
    folder.mkdir(parents=True)
    (folder / "cgroup").write_bytes(f"0::{name}\n".encode())
    assert tenants.cgroups_of(folder) == [name]
    with pytest.raises(UsageError, match="is the victim's own group"):
        find(BlameJob(victim="x", suspects=("pid:41",)), host, [41])
    with pytest.raises(UsageError, match="is the victim's own group"):
        find(BlameJob(victim="x", suspects=(name,)), host, [41])
    assert [each.name for each in find(BlameJob(victim="x", suspects=("pid:41",)), host, []).suspects] == [name]


def test_what_the_kernel_lists_is_split_at_line_ends_only():
    """Everything that blame reads may have names that a tenant chose."""
    for file in Path(labels.__file__).parent.glob("*.py"):
        lines = [line for line in file.read_text().split("\n") if "splitlines" in line]
        assert all("stderr" in line for line in lines), f"{file.name}: {lines}"


@pytest.mark.parametrize(
    "path",
    [
        "/docker",
        "/kubelet",
        "/init.scope",
        "/system.slice/docker.service",
        "/system.slice/ssh.service",
        "/kubelet.slice/kubelet.service",
        "/system.slice/systemd-udevd.service/udev",
        f"/docker/{CONTAINER}/init.scope",
        "/mine/part",
        f"/docker/{CONTAINER}/system.slice/mine.service",
    ],
)
def test_the_engine_itself_and_services_of_the_system_are_never_touched(path: str, groups_of):
    job = BlameJob(victim="x", suspects=(path,), never=("mine",))
    with pytest.raises(UsageError, match="is never touched"):
        find(job, groups_of(path), [])
