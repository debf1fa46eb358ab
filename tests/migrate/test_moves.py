"""A real guest moves between two hosts under QEMU: it arrives whole, and nothing is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from partywall.agent.catalogue import shipped
from partywall.core.here import this_host
from partywall.events import silent
from partywall.host import Host, waits
from partywall.migrate import check as plans
from partywall.migrate.findings.cost import move_finding
from partywall.migrate.measure.series import Series
from partywall.sandbox import lab, networks, qemu
from tests import root_image
from tests.measured import measured

PLAN = """
partywall_migration: 1
name: test
guest: {{memory: 160MiB}}
link: {{rate: 800Mbit/s}}
clients: {{pings: 200}}
workloads: {{writer: {{kernel: memory-dirty, params: {{working_set_bytes: 4194304, rate_bytes_per_s: 2097152}}}}}}
methods: {methods}
moves: {moves}
calibration: 0
before: 1s
after: 1s
give_up: {give_up}
"""

SLOW = waits.slowness() > 3
"""Whether the host's processor is emulated too."""

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(
        bool(lab.lacking() or qemu.lacking(Host.here())),
        reason=f"moves need: {lab.lacking() or qemu.lacking(Host.here())}",
    ),
]


def plan(methods="{default: {}}", moves=1, give_up="60s"):
    return plans.loads(PLAN.format(methods=methods, moves=moves, give_up=give_up).encode(), "plan.yaml", shipped())


@pytest.fixture
def carried_out(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))

    def carry_out(requested):
        kept = []
        run = f"test-move-{os.getpid()}"
        with Series(requested, this_host(), run, Path("/var/tmp")) as series:
            series.carry_out(silent, kept.append)
        assert not list(networks.NETNS.glob(f"{run}*"))
        assert not Path("/var/tmp", f"partywall-{run}").exists()
        return kept

    return carry_out


@measured
def test_a_guest_arrives_whole_by_pre_copy_and_post_copy(carried_out):
    kept = carried_out(plan("{default: {}, after: {postcopy: {after_passes: 1}}, back-out: {cancel: true}}"))
    assert {seen.move.method: seen.move.outcome for seen in kept} == {
        "default": "completed", "after": "completed", "back-out": "cancelled"
    }  # fmt: skip
    # Each completed move began where the one before ended.
    for seen in kept:
        assert seen.move.intact, seen.move
        assert abs(seen.move.stopped_ns) < 5_000_000 + seen.move.uncertainty_ns or seen.move.outcome == "completed"
        assert len(seen.tables["work"]), "the guest's work goes on"
        result = move_finding(seen.move, seen.tables)
        after = result.responses["after"]
        assert after.lost < 0.2 * after.sent
        if seen.move.outcome == "completed":
            # Three blackouts, of which the guest's clock and QEMU's events are of the same thing.
            # On an emulated host QEMU takes a tenth of a second between its event and the moment of the clock.
            if not SLOW:
                assert abs(result.events_ns - seen.move.stopped_ns) < 10_000_000 + seen.move.uncertainty_ns
            assert result.clients_ns > result.events_ns * 0.9
            assert sum(part.ns for part in result.parts) == result.clients_ns
            # Headers come on top.
            assert 1 < result.values["link_bytes"] / result.values["sent_bytes"] < 1.2
            assert any("ARP" in part.name for part in result.parts), "the clients' network hears where the guest is"


@pytest.mark.slow
@measured
def test_over_a_shared_link_a_move_delays_the_clients_as_long_as_it_lasts(carried_out):
    ways = {}
    for shared in (False, True):
        usual = plan()
        link = usual.link.model_copy(update={"rate": 100_000_000, "shared": shared})
        (seen,) = carried_out(usual.model_copy(update={"link": link}))
        assert seen.move.outcome == "completed"
        ways[shared] = move_finding(seen.move, seen.tables)
        # The users' bytes are not the move's.
        assert 1 < ways[shared].values["link_bytes"] / ways[shared].values["sent_bytes"] < 1.2
    if SLOW:
        # The guest itself answers too slowly for a queue of 50 ms to show.
        return
    alone, beside = (ways[shared].responses["during"].p50_ns for shared in (False, True))
    assert beside > 1.5 * alone


@pytest.mark.slow
@measured
def test_a_move_that_does_not_end_is_cancelled_and_the_guest_stays(carried_out):
    requested = plan("{never: {bandwidth: 8Mbit/s, downtime: 1ms}}", give_up="2s")
    (seen,) = carried_out(requested)
    assert seen.move.outcome == "gave up"
    assert "was not done after 2 s" in seen.move.reason
    assert seen.move.intact
    after = seen.tables["pings"][seen.tables["pings"][:, 0] > seen.move.end_ns]
    assert np.count_nonzero(after[:, 2]) > 0.9 * len(after)


@pytest.mark.slow
def test_a_destination_that_dies_leaves_the_guest_running(carried_out, monkeypatch):
    from partywall.migrate.measure.guest import MovableGuest  # noqa: PLC0415 - the test changes it

    expect = MovableGuest.expect

    def dying(self):
        side = expect(self)
        subprocess.Popen(["sh", "-c", f"sleep 0.7; kill -9 {side.process.pid}"])
        return side

    monkeypatch.setattr(MovableGuest, "expect", dying)
    (seen,) = carried_out(plan("{slow: {bandwidth: 80Mbit/s}}"))
    assert seen.move.outcome == "failed"
    assert seen.move.reason
    assert seen.move.intact


@pytest.mark.slow
def test_a_destination_that_dies_with_all_memory_gives_the_guest_back(carried_out, monkeypatch):
    from partywall.migrate.measure.move import Mover  # noqa: PLC0415 - the test changes it

    arrive = Mover._arrive

    def dying(self, moved, here, there, *, can_return):
        there.process.kill()
        arrive(self, moved, here, there, can_return=can_return)

    monkeypatch.setattr(Mover, "_arrive", dying)
    (seen,) = carried_out(plan())
    assert seen.move.outcome == "failed"
    assert "it continues on host a" in seen.move.reason
    assert seen.move.intact
    assert np.count_nonzero(seen.tables["pings"][-100:, 2]), "clients are answered again"


@pytest.mark.slow
def test_a_destination_without_room_is_refused_before_anything_moves(carried_out, monkeypatch):
    monkeypatch.setattr("partywall.migrate.measure.guest.available", lambda: 64 << 20)
    (seen,) = carried_out(plan())
    assert seen.move.outcome == "failed"
    assert seen.move.reason == "host b has 64 MiB of memory free, and the guest needs 160 MiB; free some there"
    assert seen.move.intact
    assert not seen.move.progress


def test_a_source_that_gets_no_cpu_is_requested_again_and_one_that_hangs_is_not(monkeypatch):
    from partywall.errors import TrialError  # noqa: PLC0415 - only here
    from partywall.migrate.measure.guest import Side  # noqa: PLC0415
    from partywall.migrate.measure.qemu_end import QemuEnd  # noqa: PLC0415

    side = Side("a", subprocess.Popen(["sleep", "60"]), None, None)
    requested, waited = [], [0, 8_000_000_000, 8_000_000_000, 8_000_000_000]

    def slow(self):
        requested.append(self.place)
        raise TrialError("TimeoutError")

    monkeypatch.setattr(QemuEnd, "look", slow)
    monkeypatch.setattr(Side, "_waited_ns", lambda self: waited.pop(0))
    with pytest.raises(TrialError):
        side.look()
    # The first time its main thread had waited for a CPU, the second time it had not.
    assert len(requested) == 2
    side.kill()


@pytest.mark.slow
def test_a_pause_of_post_copy_is_continued_over_another_connection(carried_out):
    (seen,) = carried_out(plan("{paused: {postcopy: {after_passes: 0, pause: 300ms}}}"))
    assert seen.move.outcome == "completed", seen.move.reason
    assert seen.move.intact


@pytest.mark.slow
def test_a_guest_that_is_stopped_goes_on_where_it_is_in_the_end(carried_out):
    methods = "{ends: {stop_after: 0}, stays: {stop_after: 0, bandwidth: 8Mbit/s}}"
    kept = {seen.move.method: seen.move for seen in carried_out(plan(methods, give_up="20s" if SLOW else "3s"))}
    assert {name: move.outcome for name, move in kept.items()} == {"ends": "completed", "stays": "gave up"}
    assert all(move.intact for move in kept.values())


@pytest.mark.slow
def test_the_guest_waits_on_the_destination_until_the_source_has_ended(carried_out, monkeypatch):
    from partywall.migrate.measure.move import Mover  # noqa: PLC0415 - the test changes it

    states = []
    arrive = Mover._arrive

    def looking(self, moved, here, there, *, can_return):
        states.append((here.monitor.execute("query-status")["status"], there.monitor.execute("query-status")["status"]))
        arrive(self, moved, here, there, can_return=can_return)

    monkeypatch.setattr(Mover, "_arrive", looking)
    carried_out(plan(moves=2))
    assert len(states) == 2
    for source, destination in states:
        assert source in ("finish-migrate", "postmigrate")
        assert destination in ("inmigrate", "paused")


needs_qemu_utils = pytest.mark.skipif(
    shutil.which("qemu-nbd") is None, reason="a guest's own disk needs qemu-img and qemu-nbd (package qemu-utils)"
)


@pytest.mark.slow
@needs_qemu_utils
@root_image.needed("nginx-light")
def test_a_guest_moves_and_returns_with_its_disk_on_a_third_host(carried_out):
    text = PLAN.format(methods="{default: {}}", moves=2, give_up="60s")
    guest = "{memory: 320MiB, root: [nginx-light], storage: network, verify: 4MiB}"
    for seen in carried_out(plans.loads(text.replace("{memory: 160MiB}", guest).encode(), "plan.yaml", shipped())):
        assert seen.move.outcome == "completed", seen.move.reason
        assert seen.move.storage_bytes is None
        assert seen.move.checked_pages > 1000
        assert seen.move.wrong_pages == 0


@pytest.mark.slow
@needs_qemu_utils
@root_image.needed("nginx-light")
@measured
def test_a_disk_moves_along_without_a_lost_write_and_a_neighbour_is_watched(carried_out):
    text = PLAN.format(methods="{default: {}}", moves=2, give_up="60s")
    guest = "{memory: 320MiB, root: [nginx-light], storage: moved, verify: 4MiB}"
    text = text.replace("{memory: 160MiB}", guest) + "bystander: {kernel: integer}\n"
    for seen in carried_out(plans.loads(text.encode(), "plan.yaml", shipped())):
        assert seen.move.outcome == "completed", seen.move.reason
        assert seen.move.storage_bytes >= 4 << 20
        assert seen.move.checked_pages > 1000
        assert seen.move.wrong_pages == 0
        assert 0 < move_finding(seen.move, seen.tables).values["bystander_ratio"] < 1.2


def test_a_killed_series_leaves_nothing_after_reap(tmp_path):
    file = tmp_path / "plan.yaml"
    file.write_text(PLAN.format(methods="{slow: {bandwidth: 20Mbit/s}}", moves=5, give_up="60s"))
    environment = os.environ | {"PARTYWALL_STATE": str(tmp_path / "state")}
    out = tmp_path / "out"
    command = [sys.executable, "-m", "partywall", "migrate", str(file), "--out", str(out)]
    running = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not list((tmp_path / "state").glob("*/networks.json")) and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(6)
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    reaped = subprocess.run(
        [sys.executable, "-m", "partywall", "reap"], env=environment, capture_output=True, text=True, check=True
    )
    assert "network namespace" in reaped.stdout
    assert not list(networks.NETNS.glob("migration-test-*"))
    result = subprocess.run(["pgrep", "-f", "partywall-guest"], capture_output=True, text=True, check=False)
    assert "migration-test" not in result.stdout
