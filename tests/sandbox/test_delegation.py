"""The cgroups of an ordinary user: what systemd delegated, what is missing there, and containers in it."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from partywall.errors import CapabilityError
from partywall.host import Host
from partywall.host.label import Label
from partywall.host.quota import PERIOD_US
from partywall.sandbox import Settings, cgroups, delegation, make, oci, reaper, remedies
from partywall.sandbox.cgroups import Cgroups
from partywall.sandbox.document import Limits
from partywall.sandbox.privileges import HOOKS, lacking
from partywall.sandbox.qemu.vcpus import VcpuGroup
from partywall.testing import fake_host

MANAGER = "user.slice/user-1000.slice/user@1000.service"
SCOPE = f"/{MANAGER}/app.slice/run-1.scope"
ALL = frozenset({"cpu", "io", "memory", "pids"})


# An ordinary user, of whose host nothing is known.
ALICE = Host({}, euid=1000)


def mounted(tmp_path, *, manager="cpu memory pids", scope="cpu memory pids"):
    """A tree as version 2 has it, with a manager's and a scope's cgroup."""
    for path, controllers in ((MANAGER, manager), (SCOPE.lstrip("/"), scope)):
        folder = tmp_path / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.controllers").write_text(f"{controllers}\n")
        for name in ("cgroup.procs", "cgroup.subtree_control"):
            (folder / name).write_text("")
    return Cgroups(unified=tmp_path, unified_controllers=ALL)


def result(tmp_path, tree, path=SCOPE, **how):
    (tmp_path / "proc/self").mkdir(parents=True, exist_ok=True)
    (tmp_path / "proc/self/cgroup").write_text(f"0::{path}\n")
    return delegation.find(tree, replace(ALICE, root=tmp_path), **{"is_delegated": lambda *_: True} | how)


@pytest.mark.parametrize(
    ("membership", "path"),
    [
        (f"0::{SCOPE}\n", SCOPE),
        (f"0::{SCOPE}/{delegation.LEAF}\n", SCOPE),
        ("0::/\n", "/"),
        (f"0::/{delegation.LEAF}\n", "/"),
        ("4:memory:/a\n0::/b\n", "/b"),
        ("4:memory:/a\n", None),
        ("0::/../elsewhere\n", None),
    ],
)
def test_the_scope_is_this_process_s_cgroup_without_the_leaf_it_was_moved_into(membership, path):
    assert delegation.own_path(membership) == path


def test_a_scope_has_the_controllers_that_systemd_handed_to_it(tmp_path):
    scope = result(tmp_path, mounted(tmp_path, scope="memory pids"))
    assert scope.path == SCOPE
    assert scope.controllers == {"memory", "pids"}
    assert scope.handed_down == ("memory",)


def test_a_cgroup_that_systemd_keeps_to_itself_is_no_scope(tmp_path):
    tree = mounted(tmp_path)
    assert result(tmp_path, tree, is_delegated=lambda *_: False) is None
    assert result(tmp_path, tree, path="/user.slice/user-1000.slice/session-3.scope") is None
    assert result(tmp_path, Cgroups(v1={"cpu": tmp_path}, unified=tmp_path)) is None


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        (SCOPE, ("run-1.scope", True)),
        (f"{SCOPE}/of/mine", ("run-1.scope", True)),
        ("/user.slice/user-1000.slice/session-3.scope", ("session-3.scope", False)),
        (f"/{MANAGER}", ("user@1000.service", False)),
        ("/", None),
    ],
)
def test_the_unit_of_a_cgroup_is_the_innermost_one_in_its_path(path, unit):
    assert delegation.unit_of(path) == unit


def test_a_refusal_outside_a_scope_names_the_whole_command_to_repeat(tmp_path, monkeypatch):
    monkeypatch.setattr(remedies, "manager_runs", lambda *_: True)
    monkeypatch.setattr(delegation, "find", lambda *_: None)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    problem = remedies.lacking_scope(
        "backend: container", mounted(tmp_path), ALICE, ["partywall", "run", "my demo.yaml"]
    )
    assert "backend: container needs a cgroup that systemd delegates to you" in problem.message
    assert problem.remedy.endswith("systemd-run --user --scope --quiet -p Delegate=yes partywall run 'my demo.yaml'")


def test_the_command_says_where_systemd_is_if_the_environment_does_not(monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert remedies.in_scope(["partywall"]).startswith(f"XDG_RUNTIME_DIR=/run/user/{os.getuid()} systemd-run ")


def test_without_a_manager_of_systemd_the_refusal_says_how_to_get_one(tmp_path, monkeypatch):
    monkeypatch.setattr(remedies, "manager_runs", lambda *_: False)
    monkeypatch.setattr(delegation, "find", lambda *_: None)
    problem = remedies.lacking_scope("backend: container", mounted(tmp_path), ALICE)
    assert "sudo" in problem.remedy
    assert "log in over ssh" in problem.remedy


def test_without_version_2_root_is_the_remedy(tmp_path):
    problem = remedies.lacking_scope("backend: container", Cgroups(v1={"cpu": tmp_path}), ALICE)
    assert "cgroup version 2" in problem.message
    assert "sudo" in problem.remedy


def test_a_controller_that_the_manager_has_by_now_is_got_by_a_new_scope():
    problem = remedies.lacking_controllers(["cpu"], frozenset({"memory"}), frozenset({"cpu", "memory"}), ["x"])
    assert "controller cpu" in problem.message
    assert remedies.REEXEC in problem.remedy
    assert problem.remedy.endswith("Delegate=yes x")


def test_a_controller_that_the_manager_lacks_is_got_from_an_administrator():
    there = frozenset({"cpu", "memory"})
    problem = remedies.lacking_controllers(["io", "cpu"], there, there)
    assert problem.message == "needs the cgroup controller io, not delegated to you"
    assert "Delegate=cpu cpuset io memory pids" in problem.remedy
    assert str(remedies.DROP_IN) in problem.remedy
    assert remedies.lacking_controllers(["cpu"], there, there) is None


def test_the_manager_s_controllers_are_those_of_its_cgroup(tmp_path):
    assert delegation.manager_controllers(mounted(tmp_path, manager="memory pids"), ALICE) == {"memory", "pids"}
    assert delegation.manager_controllers(Cgroups(unified=tmp_path / "none"), ALICE) == frozenset()


def test_a_command_is_reported_as_it_was_typed(monkeypatch):
    monkeypatch.setattr(remedies.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert remedies.command_line(["/usr/bin/partywall", "run", "x"]) == ["partywall", "run", "x"]
    assert remedies.command_line(["/opt/bin/partywall", "run"]) == ["/opt/bin/partywall", "run"]
    assert remedies.command_line(["/lib/partywall/__main__.py", "run"])[1:] == ["-m", "partywall", "run"]
    assert remedies.as_root(["partywall", "run"]) == "sudo /usr/bin/partywall run"


def test_namespaces_that_a_sysctl_forbids_are_named_with_it(tmp_path):
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/unprivileged_userns_clone").write_text("0\n")
    problem = remedies.lacking_namespaces(replace(ALICE, root=tmp_path))
    assert "kernel.unprivileged_userns_clone is 0" in problem.message
    assert problem.remedy == "sudo sysctl kernel.unprivileged_userns_clone=1"


PROFILE = (
    "# names crun\nprofile crun /usr/bin/crun flags=(unconfined) {\n  userns,\n\n  include if exists <local/crun>\n}\n"
)


def restricted(root, profiles):
    """A user's host that AppArmor restricts. profiles: files of /etc/apparmor.d."""
    files = {"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"}
    for name, text in (files | {f"etc/apparmor.d/{name}": text for name, text in profiles.items()}).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return fake_host(root=root, euid=1000)


@pytest.mark.parametrize(
    ("profiles", "allowed"),
    [
        ({}, False),
        ({"crun": PROFILE}, True),
        ({"crun": PROFILE.replace("userns,", "")}, False),
        ({"crun": PROFILE.replace("/usr/bin", "/opt/bin")}, False),
        ({"crun": PROFILE, "disable/crun": ""}, False),
        ({"podman": PROFILE.replace("crun", "podman")}, False),
    ],
)
def test_namespaces_that_apparmor_restricts_are_named_with_the_program_that_needs_a_profile(
    tmp_path, monkeypatch, profiles, allowed
):
    monkeypatch.delenv("PARTYWALL_RUNTIME", raising=False)
    problem = remedies.lacking_namespaces(restricted(tmp_path, profiles))
    assert (problem is None) is allowed
    if problem:
        assert "kernel.apparmor_restrict_unprivileged_userns is 1" in problem.message
        assert "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0" in problem.remedy
        assert "profile of /usr/bin/crun with the rule userns" in problem.remedy


def test_namespaces_of_which_none_may_be_made_are_named_with_the_sysctl(tmp_path):
    (tmp_path / "proc/sys/user").mkdir(parents=True)
    (tmp_path / "proc/sys/user/max_user_namespaces").write_text("0\n")
    problem = remedies.lacking_namespaces(replace(ALICE, root=tmp_path))
    assert "user.max_user_namespaces is 0" in problem.message
    assert problem.remedy == "sudo sysctl user.max_user_namespaces=15000"


def process(tmp_path, *, effective, uid_map):
    folder = tmp_path / "7"
    folder.mkdir(exist_ok=True)
    (folder / "status").write_text(f"Name:\tx\nCapEff:\t{effective:016x}\n")
    (folder / "uid_map").write_text(uid_map)
    return lacking(7, proc=tmp_path)


def test_capabilities_count_on_the_host_alone(tmp_path):
    everything = 0x1FFFFFFFFFF
    assert process(tmp_path, effective=everything, uid_map="         0          0 4294967295\n") == ()
    assert process(tmp_path, effective=everything, uid_map="         0       1000          1\n") == tuple(HOOKS)
    assert process(tmp_path, effective=1 << 12, uid_map="0 0 4294967295") == ("CAP_SYS_ADMIN", "CAP_PERFMON", "CAP_BPF")


def bundle(controllers, **changes):
    settings = Settings(name="v", backend="container", cpus=(1, 2), **changes)
    where = {"cgroup": f"{SCOPE}/partywall/run/v", "agent": Path("/agent"), "work": Path("/var/tmp/w"), "env": {}}
    return oci.config(settings, device=None, v2=True, delegated=frozenset(controllers), **where)


def test_a_user_s_container_has_a_user_namespace_in_which_this_user_is_root():
    made = bundle(["cpu", "memory"])
    assert {"type": "user"} in made["linux"]["namespaces"]
    assert made["linux"]["uidMappings"] == [{"containerID": 0, "hostID": os.geteuid(), "size": 1}]
    assert made["process"]["user"] == {"uid": 0, "gid": 0}


def test_a_user_s_container_is_given_nothing_that_no_controller_holds():
    limited = bundle(["cpu", "memory"], cpu_limit=0.5, memory=1 << 20)["linux"]["resources"]
    assert limited["cpu"] == {"quota": 100_000, "period": PERIOD_US}
    assert limited["memory"] == {"limit": 1 << 20}
    assert "cpus" in bundle(["cpu", "cpuset"])["linux"]["resources"]["cpu"]
    assert {"cpu", "unified"}.isdisjoint(bundle(["memory"])["linux"]["resources"])
    on_a_node = bundle(["cpuset"], memory_nodes=(1,))["linux"]["resources"]
    assert on_a_node["cpu"] == {"cpus": "1,2", "mems": "1"}
    assert "unified" not in on_a_node


def test_on_the_host_s_network_a_user_s_container_sees_the_host_s_sys_but_no_cgroups():
    def mount(network, at):
        return next((m for m in bundle(["cpu"], network=network)["mounts"] if m["destination"] == at), None)

    assert mount("own", "/sys")["type"] == "sysfs"
    assert mount("host", "/sys")["type"] == "bind"
    assert mount("host", "/sys/fs/cgroup")["type"] == "tmpfs"
    assert mount("own", "/sys/fs/cgroup") is None


@pytest.fixture
def label(tmp_path, monkeypatch):
    if os.geteuid() == 0 or (scope := delegation.find(cgroups.read(), Host.here())) is None:
        pytest.skip("an ordinary user in a delegated cgroup (systemd-run --user --scope -p Delegate=yes)")
    if missing := {"cpu", "memory"} - scope.controllers:
        pytest.skip(f"a delegated cgroup with the controllers {', '.join(missing)}")
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    made = Label.create(f"test-{os.getpid()}-{tmp_path.name[-8:]}", Path("/var/tmp"))
    yield made
    reaper.clean(made)


def own_cgroup():
    return Path("/proc/self/cgroup").read_text()


@pytest.mark.host
@pytest.mark.parametrize("network", ["own", "host"])
def test_a_user_s_container_holds_limits_and_takes_others_live(label, network):
    cpu = max(os.sched_getaffinity(0))
    before = own_cgroup()
    settings = Settings(
        name="v", backend="container", cpus=(cpu,), cpu_limit=0.5, memory=64 << 20, network=network, command=True
    )
    box = make(settings, label)
    assert box.start(lambda *_: None).hello["cpus"] == [cpu]
    files = cgroups.read().unified / box.cgroup.lstrip("/")
    assert (files / "cpu.max").read_text().split() == ["50000", "100000"]
    assert int((files / "memory.max").read_text()) == 64 << 20
    box.limit(Limits(cpu_limit=0.25, cpu_weight=300))
    assert (files / "cpu.max").read_text().split() == ["25000", "100000"]
    assert (files / "cpu.weight").read_text().strip() == "300"
    assert reaper.clean(label).left == ()
    assert not files.parent.parent.exists()
    assert own_cgroup() == before


@pytest.mark.host
def test_the_scope_stays_divided_until_the_last_run_has_left(label):
    scope = delegation.find(cgroups.read(), Host.here())
    other = Label.create(f"{label.run}-other", Path("/var/tmp"))
    for each in (label, other):
        scope.enter(each)
    assert own_cgroup().strip().endswith(delegation.LEAF)
    assert reaper.clean(label).left == ()
    assert own_cgroup().strip().endswith(delegation.LEAF)
    assert reaper.clean(other).left == ()
    assert own_cgroup().strip().endswith(scope.path)


def test_a_container_outside_a_delegated_cgroup_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(delegation, "may_divide_all", lambda *_: False)
    monkeypatch.setattr(delegation, "find", lambda *_: None)
    label = Label(run="x", state=tmp_path, work=tmp_path)
    with pytest.raises(CapabilityError, match="no cgroup is delegated"):
        make(Settings(name="v", backend="container", cpus=(0,)), label)


@pytest.mark.host
def test_a_user_s_guest_has_its_vcpu_threads_held_in_the_scope(label):
    mounted, scope = cgroups.read(), delegation.find(cgroups.read(), Host.here())
    scope.enter(label)
    program = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); print(1, flush=True)"
    environment = os.environ | label.environment
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as emulator:
        emulator.stdout.readline()
        thread = max(int(task.name) for task in Path(f"/proc/{emulator.pid}/task").iterdir())
        group = VcpuGroup(mounted, f"{scope.path}{label.cgroup}/g", handed_down=True)
        group.create(emulator.pid, [thread])
        group.set((0,), 0.25, 50)
        assert (group.folder / "cpu.max").read_text().split() == ["25000", "100000"]
        assert (group.folder.parent / "cpu.weight").read_text().strip() == "50"
        assert (group.folder / "cgroup.threads").read_text().split() == [str(thread)]
        emulator.kill()
    assert reaper.clean(label).left == ()


def test_hooks_are_got_by_sudo_and_by_root_of_a_container_on_the_host_itself():
    missing = ("CAP_BPF", "CAP_NET_ADMIN")
    user = remedies.lacking_hooks("a trace", missing, ALICE, ["partywall", "trace", "eth0"])
    assert user.remedy.startswith("run: sudo ")
    root = remedies.lacking_hooks("a trace", missing, replace(ALICE, euid=0))
    assert "sudo" not in root.remedy
    assert "run on the host itself, or start this container with CAP_BPF, CAP_NET_ADMIN" in root.remedy


def test_hooks_are_got_by_root_of_a_user_namespace_outside_of_it(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/uid_map").write_text("         0       1000          1\n")
    root = remedies.lacking_hooks("a trace", ("CAP_BPF",), replace(ALICE, euid=0, root=tmp_path))
    assert root.remedy.startswith("run on the host itself with sudo")
    assert "start this container" not in root.remedy
