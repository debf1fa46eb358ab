"""A guard on real interfaces, in namespaces of the test's own."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from partywall.agent.agents import Agents
from partywall.agent.inbox import Inbox
from partywall.cli import carrying
from partywall.core import control
from partywall.core.capability import Options
from partywall.errors import AgentError, Exit, TrialError, UsageError
from partywall.events import Event, Note, Started
from partywall.guard.capability import Guards
from partywall.guard.document import Policy
from partywall.guard.job import GuardJob
from partywall.guard.measure import guarding
from partywall.guard.measure.flatten import Flat, flatten
from partywall.guard.measure.follow import AGAIN_S, Follower
from partywall.guard.measure.left import reap
from partywall.guard.measure.resolve import VifPlace, places, resolve
from partywall.guard.measure.run import Kept, keep, remove
from partywall.guard.record import GuardInterval
from partywall.sandbox.networks import NETNS, in_namespace
from partywall.testing import fake_host
from tests.guard.records import guard
from tests.measured import measured

pytestmark = [pytest.mark.host, pytest.mark.usefixtures("guarded_lab")]
INSIDE, OUTSIDE = f"pwt{os.getpid() % 10000}a", f"pwt{os.getpid() % 10000}b"
OURS = f"partywall_guard:test-{INSIDE}"


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def hooks() -> list[str]:
    shown = subprocess.run(
        ["tc", "-n", INSIDE, "-j", "filter", "show", "dev", "eth0", "egress"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    result = json.loads(shown or "[]")
    return [item["options"]["bpf_name"] for item in result if "bpf_name" in item.get("options", {})]


def qdiscs() -> str:
    return subprocess.run(
        ["tc", "-n", INSIDE, "qdisc", "show", "dev", "eth0"], capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture
def flat(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> Iterator[Flat]:
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path))
    ip("netns", "add", INSIDE)
    ip("netns", "add", OUTSIDE)
    try:
        ip("link", "add", "eth0", "netns", INSIDE, "type", "veth", "peer", "name", "eth0", "netns", OUTSIDE)
        for number, namespace in enumerate((INSIDE, OUTSIDE), start=1):
            ip("-n", namespace, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            ip("-n", namespace, "link", "set", "eth0", "up")
        policy = Policy.model_validate(
            {
                "partywall_guard": 1,
                "name": f"test-{INSIDE}",
                "link": {"capacity": "100Mbit/s"},
                "service_classes": {"only": 1},
                "vifs": {
                    "vm": {
                        "interface": "eth0",
                        "namespace": INSIDE,
                        "service_class": "only",
                        "send": {"guarantee": "10Mbit/s", "ceiling": "20Mbit/s"},
                        "flows": {"ping": {"protocol": "icmp", "packets": 50}},
                    }
                },
            }
        )
        yield flatten(policy, resolve(policy), 50_000_000)
    finally:
        ip("netns", "del", INSIDE)
        ip("netns", "del", OUTSIDE)


def until(kept: Kept, condition: Callable[[GuardInterval], bool]) -> GuardInterval:
    """The first report of which it is true."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        report = kept.report(1)
        if report and condition(report):
            return report
    raise AssertionError("no such report within 20 s")


def send(count: int) -> None:
    # Flat out; what is dropped is not waited for.
    command = ["ip", "netns", "exec", INSIDE, "bash", "-c"]
    script = f"for i in $(seq {count}); do echo x > /dev/udp/10.77.0.2/9; done"
    subprocess.run([*command, script], capture_output=True, check=False)


def test_traffic_is_counted_at_the_leaf_it_belongs_to_and_nothing_is_left(flat: Flat) -> None:
    with keep(flat) as kept:
        assert hooks() == [OURS]
        assert "tbf" not in qdiscs(), "a queue is there only where packets wait"
        send(20)
        seen = until(kept, lambda report: report.rows["vm"]["passed_pps"] > 0)
        assert seen.rows["vm:ping"]["granted_pps"] == 50
        assert not seen.notes
    assert not hooks()
    assert "clsact" not in qdiscs()
    assert "tbf" not in qdiscs()


def test_a_hook_that_somebody_removed_is_put_back_and_reported(flat: Flat) -> None:
    with keep(flat) as kept:
        subprocess.run(["tc", "-n", INSIDE, "qdisc", "del", "dev", "eth0", "clsact"], check=True)
        result = until(kept, lambda report: bool(report.notes))
        assert [(hook, kind) for hook, kind, _ in result.notes] == [("vm", "repaired")]
        assert hooks() == [OURS]


@contextlib.contextmanager
def deleting_filters(folder: Path) -> Iterator[None]:
    """The tenant deletes all filters on its own interface, thousands of times a second."""
    batch = folder / "batch"
    batch.write_text("filter del dev eth0 egress\n" * 10_000_000)
    with subprocess.Popen(["tc", "-n", INSIDE, "-force", "-batch", str(batch)], stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


@measured
def test_a_tenant_that_deletes_its_filters_in_a_loop_delays_no_report_and_is_reported_once_a_second(
    flat: Flat, tmp_path: Path
) -> None:
    seconds = 3
    with keep(flat) as kept, deleting_filters(tmp_path):
        until(kept, lambda report: bool(report.notes))
        before = time.monotonic()
        result = [report for _ in range(20 * seconds) if (report := kept.report(seconds + 1))]
        took = time.monotonic() - before
        notes = [note for report in result for note in report.notes]
    # A report is due every 50 ms.
    assert len(result) == 20 * seconds
    assert took < 3 * seconds, f"{len(result)} reports in {took:.1f} s"
    repairs = [text for _, kind, text in notes if kind == "repaired"]
    assert 1 <= len(repairs) <= took + 1, repairs
    assert all("times in the last second" in text for text in repairs)


def test_a_killed_daemon_leaves_the_hooks_until_they_are_removed(flat: Flat) -> None:
    with keep(flat, leave=True) as kept:
        kept.client.process.send_signal(signal.SIGKILL)
        kept.client.process.wait()
        assert hooks() == [OURS]
    assert len(remove(flat.start["id"], flat.start["hooks"])) == 1
    assert not hooks()
    assert "clsact" not in qdiscs()
    assert remove(flat.start["id"], flat.start["hooks"]) == []


def two(names: str, policy: str) -> Flat:
    content = {
        "partywall_guard": 1,
        "name": policy,
        "link": {"capacity": "100Mbit/s"},
        "service_classes": {"only": 1},
        "vifs": {
            name: {"interface": name, "namespace": INSIDE, "service_class": "only", "send": {"ceiling": "5Mbit/s"}}
            for name in names.split()
        },
    }
    requested = Policy.model_validate(content)
    return flatten(requested, resolve(requested), 50_000_000)


def hooked(interface: str) -> int:
    command = ["tc", "-n", INSIDE, "filter", "show", "dev", interface, "egress"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.count("partywall_guard")


@pytest.fixture
def pairs(flat: Flat) -> None:  # noqa: ARG001 - its namespaces
    for name in ("va", "vb"):
        ip("-n", INSIDE, "link", "add", name, "type", "veth", "peer", "name", f"{name}-peer")


@pytest.mark.usefixtures("pairs")
def test_a_vif_that_an_edited_policy_no_longer_names_is_let_go() -> None:
    with keep(two("va vb", "edge"), leave=True):
        pass
    assert (hooked("va"), hooked("vb")) == (1, 1)
    with keep(two("va", "edge")):
        assert (hooked("va"), hooked("vb")) == (1, 0)
    assert hooked("va") == 0


@pytest.mark.usefixtures("pairs")
def test_a_start_that_is_refused_leaves_what_an_earlier_guard_left() -> None:
    requested = two("va vb", "edge")
    with keep(requested, leave=True):
        pass
    ip("-n", INSIDE, "link", "del", "vb")
    with pytest.raises(AgentError, match="vb"), keep(requested):
        pass
    assert hooked("va") == 1
    assert remove("edge", requested.start["hooks"])
    assert hooked("va") == 0


@pytest.mark.usefixtures("pairs")
def test_two_policies_on_one_interface_are_refused() -> None:
    with keep(two("va", "one")):
        refused = pytest.raises(
            UsageError, match=r"vifs\.va: va has hooks of policy 'one' already, enforced by process"
        )
        with refused, keep(two("va vb", "two")):
            pass
        with keep(two("vb", "two")):
            assert (hooked("va"), hooked("vb")) == (1, 1)


@pytest.mark.usefixtures("pairs")
def test_two_names_of_one_interface_are_refused() -> None:
    content = {
        "partywall_guard": 1,
        "name": "edge",
        "link": {"capacity": "100Mbit/s"},
        "service_classes": {"only": 1},
        "vifs": {
            name: {"interface": "va", "namespace": namespace, "service_class": "only"}
            for name, namespace in (("a", INSIDE), ("b", f"../../run/netns/{INSIDE}"))
        },
    }
    with pytest.raises(UsageError, match=r"vifs\.b: it is the interface va that a is already"):
        resolve(Policy.model_validate(content))


@pytest.mark.usefixtures("pairs")
def test_an_interface_that_is_not_there_is_reported_before_anything_is_done() -> None:
    requested = Policy.model_validate(
        {
            "partywall_guard": 1,
            "name": "edge",
            "link": {"capacity": "100Mbit/s"},
            "service_classes": {"only": 1},
            "vifs": {"a": {"interface": "nosuch99", "namespace": INSIDE, "service_class": "only"}},
        }
    )
    with pytest.raises(UsageError, match=r"vifs\.a\.interface: there is no interface 'nosuch99' in .*eth0, va"):
        places(requested)


@pytest.mark.parametrize("early", ["interface", "namespace", "policy"])
def test_a_guard_that_waits_hooks_what_comes_later(flat: Flat, tmp_path: Path, early: str) -> None:
    """As after a boot, when the guests start after the guard; and beside a guard that is about to end."""
    name = flat.start["id"]
    ways: dict[str, tuple[Callable[[], object], Callable[[], object], str]] = {
        "interface": (lambda: ip("-n", INSIDE, "link", "set", "eth0", "name", "eth9"),
                      lambda: ip("-n", INSIDE, "link", "set", "eth9", "name", "eth0"), "there is no interface 'eth0'"),
        "namespace": (lambda: ip("netns", "del", INSIDE),
                      lambda: (ip("netns", "add", INSIDE),
                               ip("-n", INSIDE, "link", "add", "eth0", "type", "veth", "peer", "new")),
                      f"there is no network namespace '{INSIDE}'"),
        "policy": (lambda: None, lambda: None, "is already enforced by process"),
    }  # fmt: skip
    take_away, bring_back, missing = ways[early]
    policy = tmp_path / "p.yaml"
    policy.write_text(
        f"partywall_guard: 1\nname: {name}\nlink: {{capacity: 100Mbit/s}}\nservice_classes: {{only: 1}}\n"
        f"vifs: {{vm: {{interface: eth0, namespace: {INSIDE}, service_class: only}}}}\n"
    )
    first = contextlib.ExitStack()
    if early == "policy":
        first.enter_context(keep(flat))
    take_away()
    argv = [sys.executable, "-m", "partywall", "guard", "run", "--wait-for-vifs", str(policy)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        assert running.stdout is not None
        try:
            said = next((line for line in running.stdout if missing in line), "")
            assert "nothing is enforced yet" in said
            assert running.poll() is None
            first.close()
            bring_back()
            deadline = time.monotonic() + 20
            while hooks() != [OURS]:
                assert time.monotonic() < deadline, "it is not hooked"
                time.sleep(0.05)
        finally:
            first.close()
            running.send_signal(signal.SIGINT)
            running.communicate(timeout=60)


def written(folder: Path) -> Path:
    policy = folder / "p.yaml"
    policy.write_text(
        "partywall_guard: 1\nname: edge\nlink: {capacity: 100Mbit/s}\nservice_classes: {only: 1}\n"
        f"vifs: {{vm: {{interface: eth0, namespace: {INSIDE}, service_class: only}}}}\n"
    )
    return policy


def test_ctrl_c_takes_nothing_back_of_what_was_found(
    flat: Flat, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Interrupted:
        excess: ClassVar[dict[str, str]] = {}
        queue = "tbf"
        without_backstop = ()
        sources = ()

        def notes(self) -> list[str]:
            return []

        def __init__(self) -> None:
            self.flat = flat
            row = dict.fromkeys(("offered_bps", "passed_bps", "granted_bps", "offered_pps", "passed_pps"), 0)
            row |= {"dropped_packets": 0, "marked_packets": 0, "granted_pps": None, "delay_ns": None}
            rows = dict.fromkeys(flat.leaves, row)
            pool = {"divided_bps": 100_000_000, "delay_ns": None}
            notes = (("vm", "bypassed", "9 bytes bypassed the hook"),)
            self.reports = [GuardInterval(0, 1, rows, {"send": pool, "receive": pool}, notes, 0, 0)]

        def report(self, _timeout_s: float) -> GuardInterval:
            if not self.reports:
                raise KeyboardInterrupt
            return self.reports.pop()

    policy = written(tmp_path)
    monkeypatch.setattr(guarding, "keep", lambda *_a, **_k: contextlib.nullcontext(Interrupted()))
    assert guard("run", policy, host=fake_host) == Exit.VIOLATED


@pytest.mark.usefixtures("flat")
def test_a_series_that_cannot_be_written_ends_itself_and_not_the_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = written(tmp_path)
    metrics = tmp_path / "there" / "guard.prom"
    with pytest.raises(UsageError, match="--prometheus"):
        guard("run", policy, "--for=1s", f"--prometheus={metrics}", host=fake_host)
    assert hooks() == []
    metrics.parent.mkdir()
    reported: list[object] = []

    def full(*written: object) -> None:
        reported.append(written)
        assert hooks(), "promises are kept meanwhile"
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(carrying, "write_metrics", full)
    ran = guard("run", policy, "--for=2s", "--every=200ms", f"--prometheus={metrics}", host=fake_host)
    assert ran == Exit.FAILED
    assert len(reported) == 1
    assert "can no longer be written: No space left on device; the policy is still enforced" in capsys.readouterr().err
    assert hooks() == []


def everything(namespace: str) -> str:
    """What tc shows of every interface of a namespace."""
    links = [link["ifname"] for link in json.loads(ip("-n", namespace, "-j", "link", "show"))]
    commands = [("qdisc", "show", "dev", link) for link in links]
    commands += [("filter", "show", "dev", link, way) for link in links for way in ("ingress", "egress")]
    shown = [subprocess.run(["tc", "-n", namespace, *c], capture_output=True, text=True, check=False) for c in commands]
    return "".join(each.stdout for each in shown)


def rename(to: str) -> None:
    ip("-n", INSIDE, "link", "set", "eth0", "down")
    ip("-n", INSIDE, "link", "set", "eth0", "name", to)
    ip("-n", INSIDE, "link", "set", to, "up")


def test_an_interface_with_another_name_keeps_its_hook_and_nothing_is_left_of_it(flat: Flat) -> None:
    before = everything(OUTSIDE)
    with keep(flat) as kept:
        assert "partywall_backstop" in everything(OUTSIDE)
        rename("other")
        result = until(kept, lambda report: bool(report.notes))
        assert [(kind, "called other now" in text) for _, kind, text in result.notes] == [("repaired", True)]
        assert OURS in everything(INSIDE)
    assert everything(OUTSIDE) == before
    assert "partywall" not in everything(INSIDE)
    assert "clsact" not in everything(INSIDE)


def at_once(namespace: str, *commands: str) -> None:
    """Runs commands of `ip` in one process, too fast for the guard to look in between."""
    subprocess.run(["ip", "-n", namespace, "-batch", "-"], input="\n".join(commands), text=True, check=True)


DECOY = ("link add eth0 type bridge", "link set eth0 up")
AWAY = ("link set eth0 down", "link set eth0 name other", *DECOY, "link set other up")


def flood(namespace: str, interface: str, frames: int = 1000) -> None:
    """Sends full raw frames, which need no address."""

    def fill() -> None:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as out:
            out.bind((interface, 0))
            for _ in range(frames):
                # A dropped packet is an error here, or a full buffer.
                with contextlib.suppress(OSError):
                    out.send(bytes.fromhex("02000000000102000000000a0800") + bytes(1486))

    in_namespace(NETNS / namespace, fill)


def heard(*kinds: str) -> Callable[[GuardInterval], bool]:
    return lambda report: any(kind in kinds for _, kind, _ in report.notes)


def hooks_at(interface: str) -> bool:
    command = ["tc", "-n", INSIDE, "filter", "show", "dev", interface, "egress"]
    return OURS in subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_decoy_of_the_interfaces_name_draws_no_hook_away(flat: Flat) -> None:
    with keep(flat) as kept:
        at_once(INSIDE, *AWAY)
        subprocess.run(["tc", "-n", INSIDE, "filter", "del", "dev", "other", "egress"], check=True)
        result = until(kept, heard("decoy"))
        assert "called other now" in str(result.notes)
        # A place that was looked at a moment before is looked at again after 100 ms.
        deadline = time.monotonic() + 2
        while not hooks_at("other") and time.monotonic() < deadline:
            time.sleep(0.02)
        assert (hooks_at("other"), hooks_at("eth0")) == (True, False)
        flood(INSIDE, "other")
        until(kept, lambda report: report.rows["vm"]["passed_pps"] > 0)
    assert "partywall" not in everything(INSIDE) + everything(OUTSIDE)


def test_an_interface_that_leaves_its_namespace_is_lost_and_what_it_sends_is_found(flat: Flat) -> None:
    hidden = f"{INSIDE}h"
    ip("netns", "add", hidden)
    try:
        with keep(flat) as kept:
            at_once(INSIDE, f"link set eth0 netns {hidden}", *DECOY)
            until(kept, heard("lost"))
            assert not hooks_at("eth0")
            ip("-n", hidden, "link", "set", "eth0", "up")
            flood(hidden, "eth0")
            result = until(kept, heard("bypassed"))
            assert "no more than is granted" in str(result.notes)
            at_once(INSIDE, "link del eth0")
            ip("-n", hidden, "link", "set", "eth0", "netns", INSIDE)
            until(kept, heard("repaired"))
            assert hooks_at("eth0")
    finally:
        ip("netns", "del", hidden)


@pytest.mark.parametrize("receive", [False, True])
def test_more_than_the_link_carries_in_the_direction_without_a_hook_is_a_finding(flat: Flat, receive: bool) -> None:
    vif = {"interface": "eth0", "namespace": INSIDE, "send": {"ceiling": "1Mbit/s"}}
    limited = {"receive": {"ceiling": "1Mbit/s"}} if receive else {}
    content = {"partywall_guard": 1, "name": flat.start["id"], "link": {"capacity": "1Mbit/s"}}
    policy = Policy.model_validate(content | {"vifs": {"vm": vif | limited}})
    with keep(flatten(policy, resolve(policy), 50_000_000)) as kept:
        flood(OUTSIDE, "eth0")
        until_ns = time.monotonic_ns() + 3_000_000_000
        reports = []
        until(kept, lambda report: reports.append(report) or report.at_ns > until_ns)
    texts = [text for report in reports for _, kind, text in report.notes if kind == "wrong_side"]
    assert ["side: outside" in text for text in texts] == ([] if receive else [True])


@pytest.mark.usefixtures("pairs")
def test_an_interface_that_is_created_again_passes_no_more_than_its_ceiling() -> None:
    """What passes before it has its hook is paid for after."""
    flat = two("va", "edge")
    leaves = [leaf | {"ceiling_bps": 10_000_000} for leaf in flat.start["leaves"]]
    with keep(dataclasses.replace(flat, start=flat.start | {"leaves": leaves})) as kept:
        at_once(INSIDE, "link del va")
        until(kept, heard("lost"))
        at_once(INSIDE, "link add va type veth peer name va-peer", "link set va-peer up", "link set va up")
        began = time.monotonic()
        # At most what it may send in a second, if the hook is late.
        flood(INSIDE, "va", 700)
        until(kept, heard("repaired"))
        while time.monotonic() < began + 1.2:
            flood(INSIDE, "va", 100)
        shown = in_namespace(NETNS / INSIDE, Path("/proc/thread-self/net/dev").read_text)
        took = time.monotonic() - began
    passed = int(shown.partition("va:")[2].split()[8]) * 8
    # A burst of 10 ms and a packet of 64 KiB.
    assert 1e6 < passed <= 10e6 * (1.02 * took + 0.01) + 8 * 65_536


@pytest.mark.usefixtures("pairs")
def test_interfaces_that_swap_their_names_keep_their_hooks() -> None:
    with keep(two("va vb", "edge")) as kept:
        at_once(INSIDE, "link set va name x", "link set vb name va", "link set x name vb")
        named: set[str] = set()

        def told(report: GuardInterval) -> bool:
            named.update(vif for vif, kind, _ in report.notes if kind == "decoy")
            return named == {"va", "vb"}

        until(kept, told)
        at_once(INSIDE, *(f"link set {name} up" for name in ("va", "vb", "va-peer", "vb-peer")))
        flood(INSIDE, "vb")
        # Beside the few packets of an interface that has just been set up.
        report = until(kept, lambda report: any(row["offered_bps"] > 1e6 for row in report.rows.values()))
        assert [vif for vif, row in report.rows.items() if row["offered_bps"] > 1e6] == ["va"]


def test_a_transient_guard_leaves_nothing_at_an_interface_with_another_name(flat: Flat) -> None:
    start = flat.start | {"transient": True, "fallback_after_ns": None}
    with Agents(messages=Inbox(1 << 20, lossy=True)) as agents:
        kept = Kept(dataclasses.replace(flat, start=start), agents)
        kept.start()
        rename("other")
        until(kept, heard("repaired"))
        assert hooks_at("other")
        kept.client.call("guard.stop", id=start["id"])
        assert "partywall" not in everything(INSIDE) + everything(OUTSIDE)


def test_what_a_killed_guard_left_is_found_under_another_name(flat: Flat) -> None:
    with keep(flat, leave=True) as kept:
        kept.client.process.send_signal(signal.SIGKILL)
        kept.client.process.wait()
    rename("other")
    assert remove(flat.start["id"], flat.start["hooks"])
    assert "partywall" not in everything(INSIDE) + everything(OUTSIDE)


def test_what_is_left_in_a_namespace_without_a_name_is_found_by_who_lives_in_it(flat: Flat) -> None:
    with keep(flat, leave=True):
        pass
    assert "partywall_backstop" in everything(OUTSIDE)
    with subprocess.Popen(["ip", "netns", "exec", INSIDE, "sleep", "infinity"]) as tenant:
        try:
            inside = Path(f"/run/netns/{INSIDE}").stat().st_ino
            deadline = time.monotonic() + 10
            while Path(f"/proc/{tenant.pid}/ns/net").stat().st_ino != inside:
                assert time.monotonic() < deadline
            ip("netns", "del", INSIDE)
            assert reap() == []
            removed = remove(flat.start["id"], flat.start["hooks"])
            assert [f"/proc/{tenant.pid}/ns/net" in what for what in removed] == [True]
            assert "partywall" not in everything(OUTSIDE)
        finally:
            tenant.kill()
            ip("netns", "add", INSIDE)


def test_what_cannot_be_looked_at_stays_written_down_and_is_said(flat: Flat, tmp_path: Path) -> None:
    no_namespace = tmp_path / "file"
    no_namespace.touch()
    with keep(flat, leave=True):
        pass
    hooks_ = [{**flat.start["hooks"][0], "namespace": str(no_namespace)}]
    with pytest.raises(TrialError, match=rf"could not be read: egress of eth0 in {no_namespace}"):
        remove(flat.start["id"], hooks_)
    assert (tmp_path / f"guard-{flat.start['id']}.json").exists()
    remove(flat.start["id"], flat.start["hooks"])
    assert not (tmp_path / f"guard-{flat.start['id']}.json").exists()


def wait_for_the_end_of_the_veth() -> None:
    deadline = time.monotonic() + 10
    while "eth0" in ip("-n", OUTSIDE, "link", "show"):
        assert time.monotonic() < deadline, "the veth of the deleted namespace is kept alive"


def joined() -> None:
    ip("link", "add", "eth0", "netns", INSIDE, "type", "veth", "peer", "name", "eth0", "netns", OUTSIDE)
    for namespace in (INSIDE, OUTSIDE):
        ip("-n", namespace, "link", "set", "eth0", "up")


def test_a_namespace_that_is_deleted_goes_and_the_one_made_in_its_place_is_hooked(flat: Flat) -> None:
    with keep(flat) as kept:
        ip("netns", "del", INSIDE)
        until(kept, heard("lost"))
        wait_for_the_end_of_the_veth()
        ip("netns", "add", INSIDE)
        joined()
        result = until(kept, heard("repaired"))
        assert "recreated" in str(result.notes)
        assert hooks() == [OURS]
        assert "partywall_backstop" in everything(OUTSIDE)
        ip("-n", INSIDE, "addr", "add", "10.77.0.1/24", "dev", "eth0")
        send(20)
        until(kept, lambda report: report.rows["vm"]["passed_pps"] > 0)
    assert "partywall" not in everything(INSIDE) + everything(OUTSIDE)


def test_a_sandbox_that_is_started_again_is_hooked_where_it_is_now(flat: Flat, tmp_path: Path) -> None:
    """Its name stands for another process then, in another namespace."""
    number = tmp_path / "run" / "bundles" / "vm" / "pid"
    number.parent.mkdir(parents=True)
    vif = {"sandbox": "run/vm", "service_class": "only", "send": {"ceiling": "20Mbit/s"}}
    link, classes = {"capacity": "100Mbit/s"}, {"only": 1}
    content = {"partywall_guard": 1, "name": flat.start["id"], "link": link, "service_classes": classes}
    policy = Policy.model_validate(content | {"vifs": {"vm": vif}})

    def started() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(["ip", "netns", "exec", INSIDE, "sleep", "60"])
        while Path(f"/proc/{process.pid}/comm").read_text().strip() != "sleep":
            time.sleep(0.01)
        number.write_text(str(process.pid))
        return process

    first = started()
    result = resolve(policy)
    follower = Follower(policy, result)

    def listening(wanted: str) -> Callable[[GuardInterval], bool]:
        def hear(report: GuardInterval) -> bool:
            follower.hear(report)
            return any(kind == wanted for _, kind, _ in report.notes)

        return hear

    with keep(flatten(policy, result, 50_000_000)) as kept:
        assert hooks() == [OURS]
        ip("netns", "del", INSIDE)
        first.kill()
        first.wait()
        until(kept, listening("lost"))
        wait_for_the_end_of_the_veth()
        assert follower.moved() == {}, "nothing stands for it yet"
        ip("netns", "add", INSIDE)
        joined()
        second = started()
        time.sleep(AGAIN_S)
        moved = follower.moved()
        assert moved == {"vm": VifPlace("eth0", f"/proc/{second.pid}/ns/net", inside=True)}
        kept.move(moved)
        follower.went(moved)
        assert kept.hooks[-1]["namespace"] == moved["vm"].namespace
        until(kept, listening("repaired"))
        assert hooks() == [OURS]
        assert "partywall_backstop" in everything(OUTSIDE)
        ip("-n", INSIDE, "addr", "add", "10.77.0.1/24", "dev", "eth0")
        send(20)
        until(kept, lambda report: report.rows["vm"]["passed_pps"] > 0)
        time.sleep(AGAIN_S)
        assert follower.moved() == {}, "it is where it is known to be"
    second.kill()
    second.wait()
    assert "partywall" not in everything(INSIDE) + everything(OUTSIDE)


def test_a_namespace_replaced_at_once_is_followed(flat: Flat) -> None:
    with keep(flat) as kept:
        ip("netns", "del", INSIDE)
        ip("netns", "add", INSIDE)
        ip("-n", INSIDE, "link", "add", "eth0", "type", "veth", "peer", "name", "other")
        until(kept, heard("repaired"))
        assert hooks() == [OURS]
    assert "partywall" not in everything(INSIDE)


def shown_filters() -> str:
    command = ["tc", "-n", INSIDE, "-s", "-j", "filter", "show", "dev", "eth0", "egress"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_new_policy_holds_at_once_and_the_hooks_stay(flat: Flat) -> None:
    leaves = [leaf | {"ceiling_bps": 2_000_000, "guarantee_bps": 1_000_000} for leaf in flat.start["leaves"]]
    lower = dataclasses.replace(flat, start=flat.start | {"leaves": leaves})
    other = [leaf | {"name": f"other-{leaf['name']}"} for leaf in leaves]
    with keep(flat) as kept:
        until(kept, lambda report: report.rows["vm"]["ceiling_bps"] == 20_000_000)
        before = shown_filters()
        at_ns = kept.adjust(lower)
        first = until(kept, lambda report: report.at_ns > at_ns)
        assert first.rows["vm"]["ceiling_bps"] == 2_000_000
        assert first.rows["vm"]["guarantee_bps"] == 1_000_000
        assert first.rows["vm"]["granted_bps"] <= 2_000_000
        with pytest.raises(AgentError, match=r"'?\"?other-vm.* is not in the running policy"):
            kept.adjust(dataclasses.replace(flat, start=flat.start | {"leaves": other}))
        assert until(kept, lambda report: report.at_ns > first.at_ns).rows["vm"]["ceiling_bps"] == 2_000_000
        assert shown_filters() == before, "the same hooks, not new ones"
    assert hooks() == []


@pytest.mark.usefixtures("flat")
def test_a_guard_takes_a_policy_through_its_record_and_says_what_became_of_it(tmp_path: Path) -> None:
    file, out, reported = written(tmp_path), tmp_path / "series", []
    lower = file.read_text().replace("100Mbit/s", "50Mbit/s")
    assert lower != file.read_text()

    def listen(event: Event) -> None:
        match event:
            case Started():
                control.send(out, policy=lower.replace("vm:", "vm2:"))
                control.send(out, policy=lower)
            case Note(said, _) if "policy was" in said:
                reported.append(said)

    job = GuardJob.parsed({"policy": file, "every_ns": "200ms", "for_ns": "2s"})
    record = Guards().begin(job, Options(fake_host(), out), listen)
    assert record is not None
    assert ["not changed" in said for said in reported] == [True, False]
    assert "vif 'vm2' is not in the running policy" in reported[0]
    assert "link.capacity: 100 Mbit/s → 50 Mbit/s" in reported[1]
    (_, _, first), (_, changed, second) = Guards().findings(record).parts
    assert changed == ("link.capacity: 100 Mbit/s → 50 Mbit/s",)
    ceilings = [{report["rows"]["vm"]["ceiling_bps"] for report in part.reports} for part in (first, second)]
    assert ceilings == [{100_000_000} if first.reports else set(), {50_000_000}]
