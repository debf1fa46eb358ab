"""Domains of a real libvirtd with emulated guests: made, tuned live, put back, and gone with their controller."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path, PurePath
from types import SimpleNamespace

import pytest

from partywall.agent import binary
from partywall.errors import CapabilityError, TrialError
from partywall.host.label import Label
from partywall.run.document.scenario import Scenario
from partywall.run.plan.checks import check_host
from partywall.sandbox import Settings, make, reaper
from partywall.sandbox.document import Disk, Limits
from partywall.sandbox.libvirt import Libvirt, backend, domain, leftovers, library, owned, tuning
from partywall.sandbox.libvirt.tuning import Tuner, mask, scheduling
from partywall.sandbox.qemu import balloon
from partywall.sandbox.qemu.initramfs import initramfs, loaded
from partywall.sandbox.qemu.kernel import GuestKernel
from partywall.testing import fake_host
from partywall.testing import libvirt as daemons

LACKING = daemons.lacking()


def wait_until(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.05)
    return result


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    daemon = daemons.Daemon(tmp_path_factory.mktemp("libvirt"))
    yield daemon
    daemon.stop()


@pytest.fixture
def label(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    label = Label.create(f"test-libvirt-{os.getpid()}", Path("/var/tmp"))
    yield label
    reaper.clean(label)


def settings(uri, **changed):
    return Settings(**{"name": "guest", "backend": "libvirt", "cpus": (0,), "uri": uri, "files": False, **changed})


def names(uri):
    connection = library.connect(uri)
    try:
        return [result.name() for result in connection.listAllDomains()]
    finally:
        connection.close()


@pytest.mark.host
@pytest.mark.skipif(bool(LACKING), reason=f"domains need: {LACKING}")
class TestReal:
    def test_a_domain_is_made_works_in_our_time_is_held_to_its_limits_and_leaves_nothing(self, daemon, label):
        seen = []
        disk = Disk(write_bps=8_000_000)
        requested = settings(daemon.uri, cpu_weight=200, host_cpus=(1,), disk=disk, files=True, memory=256 << 20)
        sandbox = make(requested, label)
        client = sandbox.start(lambda method, params: seen.append((method, params)))
        sandbox.settle()
        assert client.hello["emulated"]
        assert sandbox.clock_error_ns() < 100_000_000

        connection = library.connect(daemon.uri)
        result = connection.lookupByName(leftovers.domain_name(label, "guest"))
        tuner = Tuner(connection, result, "test")
        assert tuner.scheduler()["cpu_shares"] == 2048
        assert result.vcpuPinInfo(0) == [mask((0,), connection.getInfo()[2])]
        assert result.emulatorPinInfo(0) == mask((1,), connection.getInfo()[2])
        assert result.blockIoTune("vda", 0)["write_bytes_sec"] == 8_000_000
        assert result.info()[1] == 256 << 10

        work = {"kernel": {"name": "integer", "params": {}}}
        client.call("workload.start", timeout_s=60, id="w", work=work, pace="flat_out", work_dir=sandbox.work_dir)
        sandbox.limit(Limits(cpu_limit=0.25))
        assert tuner.scheduler()["vcpu_quota"] == 25_000
        # A busy host may give less, and never more.
        assert 0.05 < share_used(result, 2.0) < 0.3
        sandbox.limit(Limits())
        wait_until(lambda: share_used(result, 0.5) > 0.4)
        sandbox.limit(Limits(memory=192 << 20))
        assert abs(result.info()[2] - (192 << 10)) <= 1024
        sandbox.limit(Limits())
        assert abs(result.info()[2] - (256 << 10)) <= 1024
        client.call("workload.stop", id="w")
        assert sum(s["work"] for method, params in seen if method == "slices" for s in params["slices"]) > 0

        written = {"kernel": {"name": "disk-direct-write", "params": {"file_bytes": 4 << 20}}}
        client.call("workload.start", timeout_s=120, id="d", work=written, pace="flat_out", work_dir=sandbox.work_dir)
        client.call("workload.stop", id="d")
        assert sandbox.pid is not None
        connection.close()
        sandbox.stop()
        assert names(daemon.uri) == []
        assert leftovers.remove(label) == ([], [])

    def test_a_domain_comes_up_where_qemus_user_may_not_enter_the_kernels_folder(
        self, tmp_path_factory, label, tmp_path, monkeypatch
    ):
        kernel, closed = GuestKernel.prepared(), tmp_path / "closed"
        closed.mkdir()
        image = closed / "vmlinuz"
        image.write_bytes(kernel.image.read_bytes())
        closed.chmod(0o700)
        prepared = SimpleNamespace(image=image, module_contents=kernel.module_contents)
        monkeypatch.setattr(GuestKernel, "prepared", lambda: prepared)
        daemon = daemons.Daemon(tmp_path_factory.mktemp("user"), user="libvirt-qemu")
        try:
            sandbox = make(settings(daemon.uri), label)
            assert sandbox.start(lambda *_: None).hello["emulated"]
            sandbox.stop()
            monkeypatch.setattr(Libvirt, "_boot", lambda self: domain.Boot(image, boot_files(self.label)[1]))
            other = make(settings(daemon.uri, name="other"), label)
            with pytest.raises(TrialError, match=r"Permission denied.*must be able to enter .*--work-dir"):
                other.start(lambda *_: None)
        finally:
            daemon.stop()

    def test_a_domain_goes_with_a_controller_that_was_killed(self, daemon, tmp_path):
        code = (
            "import sys; from pathlib import Path\n"
            "from partywall.host.label import Label; from partywall.sandbox import Settings, make\n"
            "label = Label.create('killed-libvirt', Path(sys.argv[2]))\n"
            "asked = Settings(name='g', backend='libvirt', cpus=(0,), files=False, uri=sys.argv[1])\n"
            "sandbox = make(asked, label); sandbox.launch(lambda *_: None)\n"
            "print('ready', flush=True); sys.stdin.read()"
        )
        env = os.environ | {"PARTYWALL_STATE": str(tmp_path / "state")}
        argv = [sys.executable, "-c", code, daemon.uri, str(tmp_path)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
            assert process.stdout.readline() == "ready\n"
            assert names(daemon.uri) == ["partywall-killed-libvirt-g"]
            process.send_signal(signal.SIGKILL)
        wait_until(lambda: names(daemon.uri) == [])
        subprocess.run([sys.executable, "-m", "partywall", "reap"], env=env, check=True, capture_output=True)
        assert not (tmp_path / "partywall-killed-libvirt").exists()

    def test_a_domain_of_the_users_is_put_back_as_it_was_by_the_next_start(self, daemon, label):
        connection, theirs = a_domain_of_the_users(daemon, label)
        tuner = Tuner(connection, theirs, "test")
        before = tuner.before()
        leftovers.note_before(label, daemon.uri, "theirs", before)
        requested = settings(daemon.uri, cpus=(1,), host_cpus=(1,), domain="theirs")
        tuner.pin(requested)
        tuner.hold(requested, 0.3, 50, tuner.scheduler())
        assert tuner.before() != before
        done, left = leftovers.remove(label)
        assert (done, left) == ([f"limits of domain theirs of {daemon.uri}, which were restored"], [])
        assert tuner.before() == before
        theirs.destroy()
        connection.close()

    def test_an_agent_in_a_domain_of_the_users_answers_on_its_port(self, daemon, label):
        connection, theirs = a_domain_of_the_users(daemon, label)
        sandbox = make(settings(daemon.uri, domain="theirs", cpu_limit=0.5), label)
        client = sandbox.start(lambda *_: None)
        assert client.hello["cpus"] == [0]
        sandbox.settle()
        assert Tuner(connection, theirs, "test").scheduler()["vcpu_quota"] == 50_000
        # Ours is the first process there, so the machine ends with the stream; a user's goes on.
        sandbox.stop()
        wait_until(lambda: names(daemon.uri) == [])
        connection.close()

    def test_what_is_wrong_with_a_domain_is_reported_in_one_sentence(self, daemon, label):
        with pytest.raises(TrialError, match="no domain has this name; there are: none"):
            make(settings(daemon.uri, domain="nobody"), label).start(lambda *_: None)
        connection, theirs = a_domain_of_the_users(daemon, label, port=False)
        with pytest.raises(TrialError, match="has no virtio port for an agent, and no host: to reach one by ssh"):
            make(settings(daemon.uri, domain="theirs"), label).start(lambda *_: None)
        theirs.destroy()
        taken = leftovers.domain_name(label, "guest")
        boot = domain.Boot(*boot_files(label))
        other = connection.createXML(domain.definition(settings(daemon.uri), taken, "qemu", boot, None), 0)
        with pytest.raises(TrialError, match=r"the domain could not be started: .*already"):
            make(settings(daemon.uri), label).start(lambda *_: None)
        other.destroy()
        connection.close()


def boot_files(label):
    kernel = GuestKernel.prepared()
    path = label.state / "initramfs"
    path.write_bytes(initramfs(loaded(binary.find().read_bytes()), kernel.module_contents()))
    return kernel.image, path


def a_domain_of_the_users(daemon, label, *, port=True):
    xml = domain.definition(settings(daemon.uri), "theirs", "qemu", domain.Boot(*boot_files(label)), None)
    connection = library.connect(daemon.uri)
    return connection, connection.createXML(xml if port else xml.replace(domain.PORT, "somebody.else"), 0)


def share_used(result, seconds):
    """CPU time of the virtual CPUs a second, as libvirt counts it."""
    began, from_ns = result.vcpus()[0][0][2], time.monotonic_ns()
    time.sleep(seconds)
    return (result.vcpus()[0][0][2] - began) / (time.monotonic_ns() - from_ns)


def test_a_limit_of_all_cpus_is_shared_by_the_virtual_ones():
    usual = {"cpu_shares": 1024}
    assert scheduling("QEMU", 2, 2, 0.5, None, usual)["vcpu_quota"] == 50_000
    assert scheduling("QEMU", 4, 2, 0.5, None, usual)["vcpu_quota"] == 25_000
    assert scheduling("QEMU", 1, 1, None, None, usual)["vcpu_quota"] == -1
    assert scheduling("QEMU", 1, 1, 0.001, None, usual)["vcpu_quota"] == 1_000


def test_a_weight_is_in_proportion_to_what_is_usual_there():
    assert scheduling("QEMU", 1, 1, None, 50, {"cpu_shares": 1024})["cpu_shares"] == 512
    assert scheduling("QEMU", 1, 1, None, 50, {"cpu_shares": 100})["cpu_shares"] == 50
    assert scheduling("Xen", 1, 1, None, 200, {"weight": 256}) == {"weight": 512, "cap": 0}


def test_no_limit_is_the_one_that_a_domain_has_of_its_owner():
    sold = {"cpu_shares": 512, "vcpu_period": 50_000, "vcpu_quota": 25_000}
    assert scheduling("QEMU", 1, 1, None, None, sold) == sold
    assert scheduling("QEMU", 1, 1, None, 200, sold) == sold | {"cpu_shares": 1024}
    assert scheduling("QEMU", 1, 1, 0.25, None, sold) == sold | {"vcpu_period": 100_000, "vcpu_quota": 25_000}
    # What libvirt tells of a quota that was never set.
    assert scheduling("QEMU", 1, 1, None, None, {"vcpu_quota": 17_592_186_044_415})["vcpu_quota"] == -1
    assert scheduling("Xen", 1, 1, None, 200, {"weight": 256, "cap": 40}) == {"weight": 512, "cap": 40}


def test_xens_cap_counts_in_hundredths_of_one_cpu():
    assert scheduling("Xen", 1, 1, 0.25, None, {}) == {"weight": 256, "cap": 25}
    assert scheduling("Xen", 2, 2, 0.5, None, {})["cap"] == 100


def test_a_definition_says_where_everything_runs():
    requested = settings("qemu:///system", cpus=(2, 3), vcpus=3, host_cpus=(0, 1), memory=100 << 20)
    xml = domain.definition(requested, "n", "kvm", domain.Boot(PurePath("/k"), PurePath("/i")), PurePath("/d & e.img"))
    for part in (
        '<domain type="kvm">',
        '<memory unit="KiB">102400</memory>',
        "<vcpu>3</vcpu>",
        '<vcpupin vcpu="2" cpuset="2" />',
        '<emulatorpin cpuset="0,1" />',
        "<acpi />",
        'name="partywall.agent"',
        'file="/d &amp; e.img"',
    ):
        assert part in xml
    assert domain.has_port(xml)
    assert domain.first_disk(xml) == "vda"


def test_a_domains_memory_is_bound_to_its_nodes():
    boot = domain.Boot(PurePath("/k"), PurePath("/i"))
    bound, free = (
        domain.definition(settings("qemu:///system", memory_nodes=nodes), "n", "kvm", boot, None)
        for nodes in ((0, 2), ())
    )
    assert '<numatune><memory mode="strict" nodeset="0,2" /></numatune>' in bound
    assert "numatune" not in free


CAPABILITIES = """
<capabilities><host><topology><cells num='2'>
<cell id='0'><memory unit='KiB'>1024</memory><cpus num='2'><cpu id='0'/><cpu id='1'/></cpus></cell>
<cell id='2'><cpus num='0'/></cell>
</cells></topology></host></capabilities>
"""


def test_a_daemon_tells_the_nodes_of_its_host():
    assert library.nodes_in(CAPABILITIES) == [
        {"node": 0, "cpus": [0, 1], "total_bytes": 1 << 20},
        {"node": 2, "cpus": [], "total_bytes": None},
    ]
    assert library.nodes_in("<capabilities><host/></capabilities>") == []


def test_an_emulated_domain_has_the_processor_of_an_emulated_guest():
    boot = domain.Boot(PurePath("/k"), PurePath("/i"))
    emulated, kvm = (domain.definition(settings("qemu:///system"), "n", kind, boot, None) for kind in ("qemu", "kvm"))
    assert '<cpu mode="maximum"><cache mode="passthrough" />' in emulated
    for feature in ("erms", "fsrm"):
        assert f'<feature policy="disable" name="{feature}" />' in emulated
        assert feature not in kvm


def test_a_guest_of_xen_speaks_on_its_console():
    boot = domain.Boot(PurePath("/k"), PurePath("/i"))
    xml = domain.definition(settings("xen:///system"), "n", "xen", boot, None)
    assert '<type arch="x86_64" machine="xenpv">linux</type>' in xml
    assert "--console /dev/hvc0" in xml
    assert "emulatorpin" not in xml
    assert not domain.has_port(xml)
    assert domain.first_disk(xml) is None


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("Failed to connect socket to '/run/x': No such file", "no libvirt daemon answers"),
        ("unable to connect to server at 'a:1': Connection refused", "no libvirt daemon answers"),
        ("authentication unavailable: no polkit agent", "you may not use this daemon"),
        ("no connection driver available for foo:///", "libvirt knows no such URI"),
        ("something new", "something new"),
        ("", "it gave no reason"),
    ],
)
def test_why_a_connection_failed_is_reported_with_a_remedy(said, meant):
    assert meant in library.explained(said)


@pytest.mark.parametrize(
    ("uri", "local"),
    [("qemu:///system", True), ("xen+tcp://127.0.0.1:1/system", False), ("qemu+ssh://a/system", False)],
)
def test_a_uri_with_a_host_is_another_host(uri, local):
    assert domain.is_local(uri) is local


@pytest.mark.skipif("libvirt-python" in LACKING, reason="libvirt-python is not installed")
@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("qemu+unix:///system?socket=/no/such/socket", "no libvirt daemon answers"),
        ("qemu+tcp://127.0.0.1:9/system", "no libvirt daemon answers"),
    ],
)
def test_a_daemon_that_is_not_there_is_reported_in_one_sentence(label, uri, says):
    with pytest.raises(CapabilityError, match=says) as caught:
        make(settings(uri), label)
    assert "\n" not in str(caught.value)


def test_what_a_daemon_that_does_not_answer_keeps_is_reported_and_not_forgotten(label):
    uri = "qemu+unix:///system?socket=/no/such/socket"
    leftovers.note(label, uri, "partywall-x")
    leftovers.note(label, uri, "partywall-x")
    reaped = reaper.clean(label)
    assert len(reaped.left) == 1
    # Why it is not known: the daemon does not answer, or there is no library to ask it with.
    assert reaped.left[0].startswith(f"domain partywall-x of {uri} (")
    assert "libvirt" in reaped.left[0].partition(" (")[2]
    assert (label.state / leftovers.FILE).exists()
    assert reaper.clean(label, forget=True).left == reaped.left
    assert not label.state.exists()


def test_without_the_library_it_is_named_with_how_to_get_it(monkeypatch, label):
    library.library.cache_clear()
    monkeypatch.setitem(sys.modules, "libvirt", None)
    with pytest.raises(CapabilityError, match=r"libvirt-python is missing.*pip install libvirt-python"):
        make(settings("qemu:///system"), label)
    library.library.cache_clear()


def test_a_package_without_its_library_is_not_called_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libvirt.py").write_text('raise ImportError("libvirt.so.0: cannot open shared object file")')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "libvirt", raising=False)
    library.library.cache_clear()
    try:
        with pytest.raises(CapabilityError, match=r"cannot be loaded \(libvirt\.so\.0.*apt-get install libvirt0"):
            library.library()
    finally:
        library.library.cache_clear()
        sys.modules.pop("libvirt", None)


def test_the_bridge_runs_no_code_of_the_folder_that_a_run_is_started_in(tmp_path, monkeypatch, label):
    ran = tmp_path / "ran"
    for name in ("libvirt", "contextlib"):
        (tmp_path / f"{name}.py").write_text(f"open({str(ran)!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(backend, "connect", lambda _uri: Connection())
    bridge = make(settings("qemu+unix:///system?socket=/no/such/socket"), label)._bridge()
    _, said = bridge.communicate(timeout=60)
    assert not ran.exists()
    assert b"libvirt" in said


class RefusedError(Exception):
    def __init__(self, code):
        super().__init__(f"error {code}")
        self.code = code

    def get_error_code(self):
        return self.code


NO_DOMAIN, OTHER, UNSUPPORTED = 42, 38, 67


class Library:
    """What of libvirt's module is asked for here, without the package."""

    libvirtError = RefusedError  # noqa: N815 - libvirt's
    VIR_ERR_NO_DOMAIN = NO_DOMAIN
    VIR_ERR_CONFIG_UNSUPPORTED = UNSUPPORTED
    VIR_DOMAIN_AFFECT_LIVE = 1


class Connection:
    """To a daemon with one domain, or none."""

    def __init__(self, domain=None):
        self.domain = domain
        self.closed = 0
        self.kind = "QEMU"

    def getType(self):  # noqa: N802 - libvirt's
        return self.kind

    def getInfo(self):  # noqa: N802
        return ["x86_64", 1024, 2]

    def listAllDomains(self):  # noqa: N802
        return [SimpleNamespace(name=lambda name=name: name) for name in ("web2", "web1")]

    def lookupByName(self, _name):  # noqa: N802
        if self.domain is None:
            raise RefusedError(NO_DOMAIN)
        return self.domain

    def close(self):
        self.closed += 1


class Domain:
    def __init__(self, error=None, *, active=True):
        self.error, self.active = error, active

    def destroy(self):
        if self.error:
            raise RefusedError(self.error)

    def isActive(self):  # noqa: N802
        return self.active


@pytest.fixture
def made_up(monkeypatch):
    """A daemon that is not there; its domain is given by assignment."""
    connection = Connection()
    for module in (backend, leftovers, owned, tuning, library):
        monkeypatch.setattr(module, "library", Library)
    for module in (backend, leftovers, owned):
        monkeypatch.setattr(module, "connect", lambda _uri: connection)
    return connection


@pytest.mark.parametrize(("error", "is_forgotten"), [(None, True), (NO_DOMAIN, True), (OTHER, False)])
def test_a_domain_is_forgotten_only_once_it_is_gone(made_up, label, error, is_forgotten):
    sandbox = make(settings("qemu:///system"), label)
    leftovers.note(label, "qemu:///system", leftovers.domain_name(label, "guest"))
    sandbox._domain = made_up.domain = Domain(error)
    sandbox.stop()
    assert (json.loads((label.state / leftovers.FILE).read_text()) == []) is is_forgotten
    assert made_up.closed == 1
    done, left = leftovers.remove(label)
    assert (len(done), len(left)) == (0, 0 if is_forgotten else 1)


def test_notes_of_domains_survive_whatever_ends_us_while_they_are_written(label, monkeypatch):
    leftovers.note(label, "qemu:///system", "first")

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(leftovers.json, "dumps", killed)
    with pytest.raises(KeyboardInterrupt):
        leftovers.note(label, "qemu:///system", "second")
    monkeypatch.undo()
    assert [entry["domain"] for entry in json.loads((label.state / leftovers.FILE).read_text())] == ["first"]


def test_notes_that_cannot_be_read_are_reported(label):
    (label.state / leftovers.FILE).write_text("[{")
    done, left = leftovers.remove(label)
    assert done == []
    assert "its notes on domains cannot be read" in left[0]


class Theirs(Domain):
    """A running domain of the user's with two virtual CPUs and a disk. refuses: methods that fail, as they do."""

    XML = "<domain><devices><disk><target dev='vda'/></disk></devices></domain>"

    def __init__(self):
        super().__init__()
        self.number = 7
        self.held = {"cpu_shares": 1024, "vcpu_period": 50_000, "vcpu_quota": 25_000}
        self.pins = [(True, True), (False, True)]
        self.emulator = (True, True)
        self.disk = dict.fromkeys(domain.THROTTLES.values(), 0) | {"write_bytes_sec": 1_000_000}
        self.memory = 2048
        self.refuses = set()

    def state(self):
        return dict(self.held), list(self.pins), self.emulator, dict(self.disk), self.memory

    def _may(self, method):
        if method in self.refuses:
            raise RefusedError(OTHER)

    def ID(self):  # noqa: N802 - libvirt's, as all below
        return self.number

    def UUIDString(self):  # noqa: N802
        return "e1"

    def XMLDesc(self, _flags):  # noqa: N802
        return self.XML

    def info(self):
        return [1, 4096, self.memory, len(self.pins), 0]

    def schedulerParametersFlags(self, _flags):  # noqa: N802
        if "scheduling" in self.refuses:
            raise RefusedError(UNSUPPORTED)
        return dict(self.held)

    def setSchedulerParametersFlags(self, wanted, _flags):  # noqa: N802
        self._may("scheduler")
        self.held |= wanted

    def vcpuPinInfo(self, _flags):  # noqa: N802
        return list(self.pins)

    def pinVcpuFlags(self, number, pin, _flags):  # noqa: N802
        self._may("pins")
        if number >= len(self.pins):
            raise RefusedError(OTHER)
        self.pins[number] = pin

    def emulatorPinInfo(self, _flags):  # noqa: N802
        return self.emulator

    def pinEmulator(self, pin, _flags):  # noqa: N802
        self.emulator = pin

    def blockIoTune(self, _disk, _flags):  # noqa: N802
        return dict(self.disk)

    def setBlockIoTune(self, _disk, limits, _flags):  # noqa: N802
        self._may("disk")
        self.disk |= limits

    def setMemoryFlags(self, size, _flags):  # noqa: N802
        self._may("memory")
        self.memory = size


@pytest.fixture
def theirs(made_up):
    made_up.domain = Theirs()
    return made_up.domain


SYSTEM = "qemu:///system"


def test_what_keeps_a_domain_of_the_users_from_being_a_sandbox_is_reported_before_a_run(made_up, theirs, monkeypatch):
    monkeypatch.setattr(owned, "connect", lambda _uri: made_up)
    assert owned.unusable(None, "theirs", by_ssh=True) == ""
    without = "domain theirs of qemu:///system has no virtio port for an agent, and no host: to reach one by ssh"
    assert owned.unusable(None, "theirs", by_ssh=False).startswith(without)
    theirs.active = False
    assert owned.unusable(SYSTEM, "theirs", by_ssh=True).endswith("start it: virsh -c qemu:///system start theirs")
    made_up.domain = None
    assert owned.unusable(SYSTEM, "nobody", by_ssh=True).endswith("no domain has this name; there are: web1, web2")
    assert made_up.closed == 4


def test_a_domain_that_is_not_there_keeps_a_scenario_from_this_host(made_up, monkeypatch):
    monkeypatch.setattr(library, "connect", lambda _uri: made_up)
    box = {"backend": "libvirt", "domain": "nobody", "host": "there"}
    victims = {"one": {"probe": "integer", "sandbox": box}, "two": {"probe": "syscall", "sandbox": box}}
    with pytest.raises(
        CapabilityError,
        match=r"^victims\.one\.sandbox\.domain, victims\.two\S+: domain nobody of qemu:///system: no domain has",
    ):
        check_host(Scenario.model_validate({"partywall": 1, "name": "gone", "victims": victims}), fake_host())


HARD = {"cpu_limit": 0.25, "cpus": (1,), "host_cpus": (1,), "memory": 1 << 20, "disk": Disk(write_bps=4096)}


def turn(made_up, label, **requested):
    """A sandbox in the user's domain that is up and tuned."""
    sandbox = make(settings(SYSTEM, domain="theirs", **requested), label)
    sandbox._domain, sandbox._tuner = made_up.domain, Tuner(made_up, made_up.domain, "theirs")
    sandbox.settle()
    return sandbox


def test_after_a_turn_that_could_not_put_a_domain_back_the_next_one_ends_as_it_was_at_first(made_up, theirs, label):
    before = theirs.state()
    sandbox = turn(made_up, label, **HARD)
    theirs.refuses = {"scheduler", "pins", "disk", "memory"}
    sandbox.stop()
    assert theirs.state() != before
    theirs.refuses = set()
    sandbox = turn(made_up, label)
    # Nothing but pins was asked for this time.
    assert theirs.state() == (before[0], [(True, False)] * 2, *before[2:])
    sandbox.stop()
    assert theirs.state() == before
    assert leftovers.remove(label) == ([], [])


def test_between_limits_that_are_switched_a_domain_has_its_owners(made_up, theirs, label):
    before = theirs.state()[0]
    sandbox = turn(made_up, label)
    assert theirs.state()[0] == before
    sandbox.limit(Limits(cpu_limit=0.25))
    assert theirs.state()[0] != before
    sandbox.limit(Limits())
    assert theirs.state()[0] == before
    sandbox.stop()


def test_a_domains_memory_is_switched_by_its_balloon_and_goes_back_to_what_it_was(made_up, theirs, label):
    theirs.memory = before = 600 << 10
    sandbox = turn(made_up, label)
    sandbox.limit(Limits(memory=300 << 20))
    assert theirs.memory == 300 << 10
    held = dict(theirs.held)
    sandbox.limit(Limits(memory=200 << 20))
    assert theirs.memory == 200 << 10
    # Its CPU is left alone where that is not switched.
    assert theirs.held == held
    sandbox.limit(Limits())
    assert theirs.memory == before
    sandbox.stop()
    assert theirs.memory == before


def test_a_domain_that_gives_up_no_memory_is_reported(made_up, theirs, label, monkeypatch):
    monkeypatch.setattr(balloon, "STUCK_S", 0.1)
    monkeypatch.setattr(theirs, "setMemoryFlags", lambda *_: None)
    theirs.memory = 600 << 10
    sandbox = turn(made_up, label)
    with pytest.raises(TrialError, match="should leave 300 MiB of memory, but its guest keeps 600 MiB"):
        sandbox.limit(Limits(memory=300 << 20))
    sandbox.stop()


def test_a_domain_of_a_daemon_without_root_is_pinned_and_put_back_and_has_no_limits(made_up, theirs, label):
    theirs.refuses = {"scheduling", "scheduler"}
    before = theirs.state()
    sandbox = turn(made_up, label)
    assert theirs.state() != before
    with pytest.raises(CapabilityError, match="a libvirt daemon without root has none; use qemu:///system"):
        sandbox.limit(Limits(cpu_limit=0.25))
    sandbox.stop()
    assert theirs.state() == before
    assert leftovers.remove(label) == ([], [])


class Xens(Theirs):
    """A domain of Xen's: no flags, and libvirt-python cannot pin it."""

    XML = "<domain/>"

    def __init__(self):
        super().__init__()
        self.held = {"weight": 256, "cap": 40}

    def schedulerParameters(self):  # noqa: N802
        return dict(self.held)

    def setSchedulerParameters(self, wanted):  # noqa: N802
        self.held |= wanted

    def pinVcpuFlags(self, *_):  # noqa: N802
        raise AssertionError


def test_a_domain_of_the_users_under_xen_is_held_to_limits_and_not_pinned(made_up, label):
    made_up.kind, made_up.domain = "Xen", Xens()
    before = made_up.domain.state()
    sandbox = turn(made_up, label)
    sandbox.limit(Limits(cpu_limit=0.25, cpu_weight=200))
    # A quarter of its two virtual CPUs' time.
    assert made_up.domain.held == {"weight": 512, "cap": 50}
    sandbox.limit(Limits())
    assert made_up.domain.state() == before
    sandbox.stop()
    assert made_up.domain.state() == before


def test_a_domain_that_was_started_again_is_left_as_its_owner_gave_it(made_up, theirs, label):
    turn(made_up, label, **HARD)
    theirs.number += 1
    theirs.held["vcpu_quota"], theirs.pins, theirs.memory = 40_000, [(True, False)] * 2, 3000
    before = theirs.state()
    assert leftovers.remove(label) == ([], [])
    assert theirs.state() == before
    turn(made_up, label, **HARD).stop()
    assert theirs.state() == before


def test_what_of_a_domain_cannot_be_put_back_keeps_nothing_else_from_it(made_up, theirs, label):
    before = theirs.state()
    turn(made_up, label, **HARD)
    theirs.refuses = {"scheduler", "disk"}
    theirs.pins.pop()
    done, left = leftovers.remove(label)
    assert done == []
    assert "CPU limit and weight: error 38; limits of disk vda: error 38" in left[0]
    assert (theirs.pins, theirs.emulator, theirs.memory) == (before[1][:1], before[2], before[4])


def test_a_domain_of_the_users_that_was_shut_down_meanwhile_has_nothing_to_be_put_back(made_up, theirs, label):
    turn(made_up, label, **HARD)
    theirs.active = False
    assert leftovers.remove(label) == ([], [])
