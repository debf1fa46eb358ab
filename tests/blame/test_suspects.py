"""What is read of suspects."""

from pathlib import Path

import pytest

from partywall.blame.job import BlameJob
from partywall.blame.measure import labels
from partywall.blame.measure.levers import lever
from partywall.blame.measure.owners import Kind
from partywall.blame.measure.places import place_of
from partywall.blame.measure.suspects import find, reader
from partywall.errors import UsageError
from partywall.host import Host
from partywall.sandbox import cgroups


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
        here = cgroups.Cgroups(unified=tmp_path / "groups", unified_controllers=frozenset({"cpu"}))
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
