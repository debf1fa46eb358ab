"""A guest of the user's own moves between hosts of the user's own: by libvirt, by QEMU's monitors, and through ssh."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from partywall.agent.catalogue import shipped
from partywall.core.capability import Options
from partywall.errors import CapabilityError, Exit
from partywall.events import silent
from partywall.host import Host
from partywall.migrate import check as plans
from partywall.migrate.capability import Migrations
from partywall.migrate.job import MigrationJob
from partywall.migrate.measure import move as moves_of_guests
from partywall.migrate.measure.channel import Channel
from partywall.migrate.measure.libvirt_end import LibvirtEnd
from partywall.migrate.measure.storage import Mirror, copies
from partywall.sandbox import lab, qemu
from partywall.testing import libvirt
from tests import ssh_server
from tests.sandbox.own_hosts import MIB, Monitored, booted, writer

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(
        bool(lab.lacking() or qemu.lacking(Host.here())), reason=f"needs: {lab.lacking() or qemu.lacking(Host.here())}"
    ),
]
HEAD = "partywall_migration: 1\nname: own\nbefore: 500ms\nafter: 500ms\ngive_up: 20s\n"


@pytest.fixture
def options(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    # Paths of sockets may not be long.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as work:
        yield Options(Host.here(), out=tmp_path / "record", work_root=Path(work))


def moved(text, options, head=HEAD):
    """The moves of a plan, as the command makes them, and its report."""
    kind, job = Migrations(), MigrationJob(plan=plans.loads((head + text).encode(), "plan.yaml", shipped()))
    record = kind.begin(job, options, silent)
    report = kind.findings(record)
    assert kind.files().documents["html"][1](report)
    assert not list(options.work_root.iterdir())
    return record.evidence().moves, report


def by_monitors(source, destination, ssh=""):
    return (
        f"hosts:\n  a: {{qmp: {source.socket}, address: 127.0.0.1{ssh}}}\n"
        f"  b: {{qmp: {destination.socket}, address: 127.0.0.1{ssh}}}\nclients: {{address: 127.0.0.1, pings: 200}}\n"
    )


@pytest.fixture
def qemus(tmp_path):
    started = []

    def start(name, **how):
        started.append(Monitored(tmp_path, name, **how))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def test_a_qemu_that_the_user_started_moves_and_its_source_ends(qemus, options):
    source, destination = qemus("one"), qemus("two", arriving=True)
    (move,), report = moved(by_monitors(source, destination), options)
    assert move.outcome == "completed", move.reason
    assert move.paused_ns < move.resumed_ns
    assert move.memory["transferred"] > 0
    assert source.process.wait(10) is not None
    assert destination.process.poll() is None
    (finding,) = report.findings.moves
    assert finding.responses["during"].sent > 0
    assert finding.responses["during"].lost == 0, "127.0.0.1 answers all the time"


def with_disk(file, mib):
    file.write_bytes(os.urandom(mib << 20))
    return ("-drive", f"if=none,id=data,format=raw,file={file}", "-device", "virtio-blk-pci,drive=data")


@pytest.mark.slow
def test_disks_of_one_s_own_guest_move_along(qemus, options, tmp_path):
    first, second = tmp_path / "first.raw", tmp_path / "second.raw"
    source = qemus("one", options=with_disk(first, 4))
    destination = qemus("two", arriving=True, options=with_disk(second, 4))
    text = by_monitors(source, destination) + "guest: {storage: moved}\n"
    (move,), _ = moved(text, options)
    assert move.outcome == "completed", move.reason
    assert move.storage_bytes == 4 << 20
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.slow
def test_a_guest_that_stands_before_its_hand_over_continues_with_the_next_look(qemus, options, tmp_path):
    """As after a kill of Partywall: nobody finishes the copy of its disk."""
    source = qemus("one", options=with_disk(tmp_path / "first.raw", 4))
    destination = qemus("two", arriving=True, options=with_disk(tmp_path / "second.raw", 4))
    with contextlib.ExitStack() as stack:
        one, two = (stack.enter_context(Channel(name, str(each.socket), None, options.work_root)).monitor
                    for name, each in (("one", source), ("two", destination)))  # fmt: skip
        switch = {"capability": "pause-before-switchover", "state": True}
        one.execute("migrate-set-capabilities", capabilities=[switch])
        Mirror(one, two, "127.0.0.1", 40131).begin(None, 20, lambda _: None)
        two.execute("migrate-incoming", uri="tcp:127.0.0.1:40132")
        one.execute("migrate", uri="tcp:127.0.0.1:40132")
        deadline = time.monotonic() + 20
        while one.execute("query-migrate").get("status") != "pre-switchover" and time.monotonic() < deadline:
            time.sleep(0.05)
    with pytest.raises(CapabilityError, match=r"stood still before its hand-over.* the guest is running"):
        moved(by_monitors(source, destination) + "guest: {storage: moved}\n", options)
    with Channel("one", str(source.socket), None, options.work_root) as channel:
        assert channel.monitor.execute("query-status")["status"] == "running"
        assert not copies(channel.monitor)


def test_a_disk_that_the_destination_lacks_is_refused(qemus, options, tmp_path):
    source = qemus("one", options=with_disk(tmp_path / "first.raw", 4))
    text = by_monitors(source, qemus("two", arriving=True)) + "guest: {storage: moved}\n"
    with pytest.raises(CapabilityError, match="lacks the guest's disk data"):
        moved(text, options)
    small = qemus("three", arriving=True, options=with_disk(tmp_path / "second.raw", 2))
    with pytest.raises(CapabilityError, match="has 2 MiB, and the guest's has 4 MiB"):
        moved(by_monitors(source, small) + "guest: {storage: moved}\n", options)
    assert source.process.poll() is None


@pytest.mark.slow
@pytest.mark.skipif(bool(ssh_server.lacking()), reason=f"no sshd: {ssh_server.lacking()}")
def test_a_qemu_on_another_machine_moves_through_ssh(qemus, options, tmp_path, monkeypatch):
    (tmp_path / "ssh").mkdir()
    server = ssh_server.SshServer(tmp_path / "ssh")
    monkeypatch.setenv("PARTYWALL_SSH", server.client)
    try:
        source, destination = qemus("one"), qemus("two", arriving=True)
        (move,), report = moved(by_monitors(source, destination, ssh=", ssh: there"), options)
        assert move.outcome == "completed", move.reason
        assert "resident in its QEMU's process" in report.findings.notes[0]
        again = replace(options, out=options.out.with_name("again"))
        with pytest.raises(CapabilityError, match="refused, by ssh: it refused us"):
            moved(by_monitors(source, destination, ssh=", ssh: refused"), again)
    finally:
        server.stop()


@pytest.mark.slow
def test_a_guest_that_arrived_when_nobody_followed_its_move_continues(qemus, options):
    source, destination = qemus("one"), qemus("two", arriving=True)
    text = by_monitors(source, destination)
    with contextlib.ExitStack() as stack:
        one, two = (stack.enter_context(Channel(name, str(each.socket), None, options.work_root)).monitor
                    for name, each in (("one", source), ("two", destination)))  # fmt: skip
        two.execute("migrate-incoming", uri="tcp:127.0.0.1:40123")
        one.execute("migrate", uri="tcp:127.0.0.1:40123")
        deadline = time.monotonic() + 20
        while one.execute("query-migrate").get("status") != "completed" and time.monotonic() < deadline:
            time.sleep(0.05)
    with pytest.raises(CapabilityError, match=r"had arrived on this machine \(.*two.qmp\).* it continues now"):
        moved(text, options)
    with Channel("two", str(destination.socket), None, options.work_root) as channel:
        assert channel.monitor.execute("query-status")["status"] == "running"


def looked(text, options):
    """What is predicted by a look at a guest."""
    return Migrations().look(
        MigrationJob(plan=plans.loads((HEAD + text).encode(), "plan.yaml", shipped())), options, silent
    )


SIZE = ("-m", "98176k")
LINK = "link: {rate: 400Mbit/s}\n"


@pytest.mark.slow
def test_a_guest_is_watched_before_it_moves_and_the_report_compares(qemus, options, tmp_path):
    boot = booted(writer(tmp_path, filled=40 * MIB, working_set=16 * MIB, rate=4 * MIB))
    source, destination = qemus("one", options=(*SIZE, *boot)), qemus("two", arriving=True, options=(*SIZE, *boot))
    text = by_monitors(source, destination) + LINK + "methods: {limited: {bandwidth: 200Mbit/s}}\n"
    with Channel("one", str(source.socket), None, options.work_root) as channel:
        _full(channel, 40 * MIB)
        before = channel.monitor.execute("query-migrate-parameters")
    forecast = looked(text, options)
    assert source.process.poll() is None
    ((_, prediction),) = forecast.predictions.items()
    assert prediction.converges
    (said,) = forecast.said
    assert "resident in its QEMU's process" in said
    with Channel("one", str(source.socket), None, options.work_root) as channel:
        assert channel.monitor.execute("query-status")["status"] == "running"
        assert channel.monitor.execute("query-migrate-parameters") == before
    (move,), report = moved(text, options)
    assert move.outcome == "completed", move.reason
    (cell,) = report.findings.cells
    assert 30 * MIB < cell.prediction.spans["sent_bytes"].value < 70 * MIB
    assert cell.measured["total_s"].n == 1
    assert "assumed costs" in report.findings.rests_on


def _full(channel, content):
    """Waits until a guest has written what it holds."""
    deadline = time.monotonic() + 60
    while (area := channel.resident(SIZE_BYTES)) is None or area.resident < content:
        assert time.monotonic() < deadline, area
        time.sleep(0.05)


SIZE_BYTES = 98176 * 1024


def test_memory_in_a_file_is_counted_page_by_page(qemus, options, tmp_path):
    boot = booted(writer(tmp_path, filled=40 * MIB, working_set=16 * MIB, rate=4 * MIB))
    shared = ("-machine", "memory-backend=ram", "-object", f"memory-backend-memfd,id=ram,size={SIZE_BYTES},share=on")
    source = qemus("one", options=(*SIZE, *shared, *boot))
    destination = qemus("two", arriving=True, options=(*SIZE, *boot))
    with Channel("one", str(source.socket), None, options.work_root) as channel:
        _full(channel, 40 * MIB)
        assert channel.resident(SIZE_BYTES).file is not None
    forecast = looked(by_monitors(source, destination) + LINK, options)
    (said,) = forecast.said
    assert "one page in 2 was watched" in said
    assert "MiB in 25 ms" in said or "KiB in 25 ms" in said


@pytest.mark.slow
def test_advice_needs_no_move(qemus, options):
    source, destination = qemus("one"), qemus("two", arriving=True)
    kind, text = Migrations(), HEAD + by_monitors(source, destination)
    for rest, exit_ in (("", Exit.INCONCLUSIVE), (LINK, Exit.HOLDS)):
        job = MigrationJob(plan=plans.loads((text + rest).encode(), "plan.yaml", shipped()), only_advise=True)
        record = kind.begin(job, replace(options, out=options.out.with_name(f"advice{len(rest)}")), silent)
        assert kind.outcome(kind.findings(record)) == exit_
        assert not record.evidence().moves
    assert source.process.poll() is None


@pytest.mark.slow
def test_a_move_of_one_s_own_guest_is_cancelled_at_its_limit_and_the_guest_stays(qemus, options):
    source, destination = qemus("one"), qemus("two", arriving=True)
    text = by_monitors(source, destination) + "methods: {slow: {bandwidth: 80kbit/s, downtime: 1ms}}\n"
    (move,), _ = moved(text, options, HEAD.replace("20s", "2s"))
    assert move.outcome == "gave up", move.reason
    assert source.process.poll() is None


def test_every_refusal_comes_before_anything_moves(qemus, options):
    source, alone = qemus("one", options=("-device", "ivshmem-plain,memdev=m", "-object",
                                          "memory-backend-ram,id=m,size=1M,share=on")), qemus("two")  # fmt: skip
    with pytest.raises(CapabilityError, match="runs on both hosts"):
        moved(by_monitors(source, alone), options)
    older = qemus("three", arriving=True, options=("-cpu", "qemu64,-sse2"))
    with pytest.raises(CapabilityError) as raised:
        moved(by_monitors(source, older) + "methods: {limited: {dirty_limit: 20MiB}}\n", options)
    said = str(raised.value)
    assert "lacks CPU features that the guest has: sse2" in said
    assert "no dirty-limit" in said
    assert source.process.poll() is None


@pytest.fixture
def daemons(tmp_path):
    if why := libvirt.lacking():
        pytest.skip(f"a libvirtd needs: {why}")
    with libvirt.Hosts(tmp_path, ("host1", "host2")) as hosts:
        yield list(hosts.daemons.values())


def by_libvirt(daemons, rest=""):
    a, b = (daemon.uri for daemon in daemons)
    return (
        f"hosts:\n  a: {{uri: '{a}', address: 198.18.77.1}}\n  b: {{uri: '{b}', address: 198.18.77.2}}\n"
        f"{rest}guest: {{domain: web}}\n"
    )


def domain(daemon, devices=""):
    import libvirt as library  # noqa: PLC0415 - not everywhere

    connection = library.open(daemon.uri)
    return connection.createXML(libvirt.FIRMWARE.format(name="web", devices=devices), 0), connection


def floppy(image):
    """A device from which a domain boots."""
    return (
        f"<disk type='file' device='floppy'><driver name='qemu' type='raw'/><source file='{image}'/>"
        "<target dev='fda' bus='fdc'/><readonly/><boot order='1'/></disk>"
    )


@pytest.mark.parametrize("way", ["peer to peer", "direct"])
def test_a_domain_moves_there_and_back(daemons, options, way):
    _, connection = domain(daemons[0])
    moves, _ = moved(by_libvirt(daemons, "  direct: true\n" if way == "direct" else "") + "moves: 2\n", options)
    assert [move.outcome for move in moves] == ["completed", "completed"], [move.reason for move in moves]
    assert [move.source for move in moves] == ["a", "b"]
    for move in moves:
        assert move.total_ns > 0
        assert move.downtime_ns is not None
        assert move.memory["transferred"] > 0
        assert move.paused_ns < move.resumed_ns
    assert connection.lookupByName("web").isActive(), "it is back"


@pytest.mark.slow
def test_a_domain_is_watched_and_cancelled_at_its_limit(daemons, options, tmp_path):
    image = writer(tmp_path, filled=30 * MIB, working_set=16 * MIB, rate=4 * MIB)
    booted_, connection = domain(daemons[0], floppy(image))
    deadline = time.monotonic() + 60
    while booted_.memoryStats()["rss"] < 60 * 1024 and time.monotonic() < deadline:
        time.sleep(0.1)
    text = by_libvirt(daemons) + LINK + "methods: {slow: {bandwidth: 8Mbit/s, downtime: 10ms}}\n"
    ((_, prediction),) = looked(text, options).predictions.items()
    assert not prediction.converges, "it changes 4 MiB/s and sends 1"
    (move,), report = moved(text, options, HEAD.replace("20s", "2s"))
    assert move.outcome == "gave up", move.reason
    assert "it was not done after 2 s" in move.reason
    assert connection.lookupByName("web").info()[0] == 1, "it runs on"
    assert report.findings.cells[0].prediction is not None


@pytest.fixture
def slow_hosts(tmp_path):
    """Two hosts, and a guest at work on the first. After a hand-over by post-copy, its rest takes some seconds."""
    if why := libvirt.lacking():
        pytest.skip(f"a libvirtd needs: {why}")
    with libvirt.Hosts(tmp_path, ("host1", "host2"), rate="40mbit") as hosts:
        image = writer(tmp_path, filled=30 * MIB, working_set=28 * MIB, rate=16 * MIB)
        guest, connection = domain(hosts.daemons["host1"], floppy(image))
        deadline = time.monotonic() + 60
        while guest.memoryStats()["rss"] < 60 * 1024 and time.monotonic() < deadline:
            time.sleep(0.1)
        yield hosts
        connection.close()


@contextlib.contextmanager
def after_the_hand_over(uri, *command):
    """Runs a command as soon as a domain runs on a destination, before the rest of its memory has arrived."""

    def run():
        deadline = time.monotonic() + 60
        with contextlib.closing(LibvirtEnd("b", uri, "web")) as there:
            while not (there.has_domain() and there.state() == "running") and time.monotonic() < deadline:
                time.sleep(0.02)
        subprocess.run(command, capture_output=True, check=False)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()


HANDED = "methods: {rest-later: {postcopy: {after_passes: 1}}}\n"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["peer to peer", "direct"])
def test_a_post_copy_by_libvirt_whose_connection_breaks_continues_over_another(slow_hosts, options, way):
    hosts = slow_hosts
    text = by_libvirt(hosts.daemons.values(), "  direct: true\n" if way == "direct" else "") + HANDED
    in_host = ("nsenter", f"--net=/proc/{hosts.daemons['host1'].process.pid}/ns/net")
    with after_the_hand_over(hosts.uri("host2"), *in_host, "ss", "-K", "dst", hosts.address("host2")):
        (move,), _ = moved(text, options)
    assert move.outcome == "completed", move.reason
    assert move.reason == "the link broke after the hand-over, and the move continued over a new connection"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["by the next look", "by hand"])
def test_a_post_copy_by_libvirt_that_is_left_without_a_link_is_continued_when_it_is_back(
    slow_hosts, options, monkeypatch, how
):
    monkeypatch.setattr(moves_of_guests, "RECOVER_S", 3.0)
    hosts = slow_hosts
    text = by_libvirt(hosts.daemons.values()) + HANDED
    link = ("nsenter", f"--net=/proc/{hosts.daemons['host1'].process.pid}/ns/net", "ip", "link", "set", "uplink")
    with after_the_hand_over(hosts.uri("host2"), *link, "down"):
        (move,), _ = moved(text, options)
    assert move.outcome == "paused", move.reason
    assert "the guest waits on host b for the rest of its memory" in move.reason
    assert f"virsh -c '{hosts.uri('host1')}' migrate --live --postcopy --postcopy-resume --p2p" in move.reason
    subprocess.run([*link, "up"], check=True)
    if how == "by hand":
        command = move.reason[move.reason.index("virsh -c") :]
        deadline = time.monotonic() + 120
        while (ran := subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)).returncode:
            # libvirt goes on with its last try for some time.
            assert "actively monitored by another thread" in ran.stderr or "Domain not found" in ran.stderr, ran.stderr
            if "Domain not found" in ran.stderr or time.monotonic() > deadline:
                break
            time.sleep(0.5)
    else:
        # A try of libvirt's own that was faster leaves nothing to continue, and then the guest moves back.
        try:
            moved(text, replace(options, out=options.out.with_name("again")))
        except CapabilityError as error:
            assert "its move continued now, and it is on" in str(error)  # noqa: PT017 - it need not be raised
    here, there = (LibvirtEnd(place, hosts.uri(name), "web") for place, name in (("a", "host1"), ("b", "host2")))
    with contextlib.closing(here), contextlib.closing(there):
        (where,) = (end for end in (here, there) if end.has_domain())
        assert where.state() == "running"


def test_a_domain_that_cannot_move_is_refused(daemons, options):
    _, connection = domain(daemons[0])
    text = by_libvirt(daemons) + "methods: {limited: {stop_after: 2, dirty_limit: 20MiB}}\n"
    with pytest.raises(CapabilityError, match="no dirty-limit"):
        moved(text, options)
    connection.lookupByName("web").destroy()
    with pytest.raises(CapabilityError, match="domain web runs on neither"):
        moved(by_libvirt(daemons), options)
