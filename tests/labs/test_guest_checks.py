"""The lab's checks of guests under KVM judge what guests did, and never take an emulated one for it."""

import json

import pytest

from labs.hosts import checks, guests, limits
from labs.hosts.bench import Bench, FailedError
from labs.hosts.catalogue import HOSTS
from labs.hosts.checks import CHECKS
from labs.hosts.limits import Kept
from labs.hosts.machine import Output

HOST = HOSTS["debian-13-kvm"]
CHECKED = (
    "accelerator: kvm (a guest came up under KVM)\nthe agent answered 14.8 s after QEMU was started\n"
    "the guest's clock is known to ± 2200 µs\n"
)


class Answering:
    """Answers a command with the text of the first word that it contains. found: the findings of its runs."""

    host = HOST

    def __init__(self, answers=(), found=None):
        self.answers, self.found, self.machine = dict(answers), found or {}, self

    def partywall(self, command, *_accepted, **_limits):
        return self.shell(command)

    def shell(self, command, **_limits):
        text = next((text for word, text in self.answers.items() if word in command), "")
        return Output(command, 0, text, 1.0)

    as_root = run = shell
    tested = Bench.tested

    def bring(self, files, _to):
        assert all(file.exists() for file in files)

    def findings(self, _run):
        return self.found


@pytest.mark.parametrize(
    ("checked", "doctor", "fails"),
    [
        (CHECKED, "✓ KVM  /dev/kvm\n works", ""),
        (CHECKED.replace("kvm", "tcg"), "/dev/kvm works", "accelerator: tcg"),
        (CHECKED, "✗ KVM  /dev/kvm opens, but a guest did not come up", "doctor does not say"),
        ("accelerator: kvm (a guest came up under KVM)", "/dev/kvm works", "accelerator"),
    ],
)
def test_a_guest_must_come_up_under_kvm_and_doctor_must_know(checked, doctor, fails):
    bench = Answering({"vm check --accel kvm": checked, "doctor": doctor})
    if fails:
        with pytest.raises(FailedError, match=fails):
            CHECKS["vm-check"](bench)
    else:
        assert CHECKS["vm-check"](bench) == (
            "the agent answered 14.8 s after QEMU was started; the guest's clock is known to ± 2200 µs"
        )


def cell(value, *warnings, role="limit"):
    return {
        "role": role,
        "isolation": {"value": value, "low": value - 0.01, "high": value + 0.01},
        "warnings": warnings,
    }


@pytest.mark.parametrize(
    ("cells", "fails"),
    [
        ([cell(0.5), cell(1.0, role="baseline")], ""),
        ([cell(0.5, "emulated")], "were emulated"),
        ([cell(0.7)], "kept 70.0%"),
        ([cell(1.0, role="baseline")], "no figure"),
    ],
)
def test_a_domain_of_libvirt_must_be_of_kvm_and_keep_its_ceiling(cells, fails):
    bench = Answering(found={"cells": cells})
    if fails:
        with pytest.raises(FailedError, match=fails):
            CHECKS["libvirt"](bench)
    else:
        assert CHECKS["libvirt"](bench) == "ceiling of 50 %: promised 50.0%, kept 50.0% ± 1.0%"


def test_limits_of_emulated_guests_do_not_count(monkeypatch):
    monkeypatch.setattr(limits, "short", lambda *_, **__: [Kept("ceiling", 0.5, 0.5, 0.01, 0.5)])
    assert "promised 50.0%" in CHECKS["guest-limits"](Answering(found={"cells": [cell(0.5)]}))
    with pytest.raises(FailedError, match="guest-limits were emulated"):
        CHECKS["guest-limits"](Answering(found={"cells": [cell(0.5, "emulated")]}))


TRACED = {"sent": 500, "arrived": 499, "lost": 1, "dropped": 1, "hops": 5, "into_guest_ns": 2e6, "bound_ns": 3e5}


@pytest.mark.parametrize(
    ("other", "fails"),
    [({}, False), ({"arrived": 498}, True), ({"dropped": 0}, True), ({"sent": 0, "arrived": 0, "lost": 0}, True)],
)
def test_each_datagram_is_seen_in_the_guest_or_is_one_that_the_tap_dropped(other, fails):
    bench = Answering({"guest_trace": json.dumps(TRACED | other)})
    if fails:
        with pytest.raises(FailedError):
            CHECKS["guest-trace"](bench)
    else:
        assert CHECKS["guest-trace"](bench).startswith("499 of 500 datagrams seen at all 5 hops, 2 ms from the tap")


POWERED = {"attributed_s": 9.8, "watts": 12.5, "span_s": 10.0, "process_s": 9.7, "guest_s": 9.1}


@pytest.mark.parametrize(
    ("other", "fails"),
    [
        ({}, False),
        ({"attributed_s": 5.0}, True),
        ({"guest_s": 0.0}, True),
        ({"process_s": 0.0, "guest_s": 0.0, "attributed_s": 0.0}, True),
        ({"watts": 0.0}, True),
    ],
)
def test_a_busy_guest_gets_the_watts_of_the_time_that_the_kernel_counts(other, fails):
    bench = Answering({"guest_power": json.dumps(POWERED | other)})
    if fails:
        with pytest.raises(FailedError, match="a busy guest used"):
            CHECKS["guest-power"](bench)
    else:
        assert "12.5 W (modelled)" in CHECKS["guest-power"](bench)


@pytest.mark.parametrize(
    ("notes", "fails"), [(["A note."], False), (["The guest was emulated: times are longer than with KVM"], True)]
)
def test_moves_on_a_host_with_kvm_are_of_guests_under_kvm(notes, fails):
    blackouts = {"downtime_s": 0.01, "stopped_s": 0.02, "clients_s": 0.03}
    names = ("default", "four-channels", "packed", "throttled", "limited", "stopped", "handed-over")
    moves = [{"move": {"method": name, "outcome": "completed", "intact": True}, "values": blackouts} for name in names]
    bench = Answering(found={"moves": moves, "notes": notes})
    if fails:
        with pytest.raises(FailedError, match="the guest that moved was emulated"):
            CHECKS["migrate"](bench)
    else:
        assert "handed-over: completed" in CHECKS["migrate"](bench)


def test_what_is_tried_of_guests_is_long_and_only_there():
    named = [name for name, host in HOSTS.items() if set(guests_of(host))]
    assert named == ["debian-13-kvm"]
    assert set(HOST.long) <= set(CHECKS)


def guests_of(host):
    return [name for name in host.long if CHECKS[name].__module__ == guests.__name__]


def test_every_scenario_that_a_check_names_is_there():
    for name in ("guest-limits", "domains"):
        assert (checks.HERE / "scenarios" / f"{name}.yaml").exists()


@pytest.mark.parametrize("name", ["tests", "guest-tests"])
@pytest.mark.parametrize(
    ("said", "fails"),
    [
        ("...\n== 31 passed, 2 skipped in 40.1s ==", ""),
        ("SKIPPED [33] tests/sandbox/test_guest.py: guests need: a kernel\n33 skipped in 36.72s", "need: a kernel"),
    ],
)
def test_tests_that_all_skip_show_nothing(name, said, fails):
    bench = Answering({"pytest": said})
    if fails:
        with pytest.raises(FailedError, match=fails):
            CHECKS[name](bench)
    else:
        assert CHECKS[name](bench) == "31 passed, 2 skipped in 40.1s"
