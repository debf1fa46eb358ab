"""What guests do on a stock host whose KVM carries them: start, limits, virtual users, traces, domains and watts.

The host itself may be emulated, with a processor whose virtualisation is emulated too. Then KVM's own code runs, at a
tenth of its speed or less. So these checks are short, and judge what was done and not how fast.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labs.hosts import image, limits
from labs.hosts.bench import MEASURED, Bench, expect
from partywall import units

SLOW_S = 1800
SCENARIOS = "/opt/try/scenarios"
BENCHES = "/opt/benches"
# Of a guest that computes without a pause: its share of the time, and how far two accounts of it may differ.
BUSY_SHARE, ACCOUNTS_APART = 0.8, 0.05
# Tests of the controller whose subject is a guest that runs, see `tests/guests.py`.
TESTS = ("sandbox/test_guest.py", "guard/test_guest_network.py", "migrate/test_moves.py")


def check(bench: Bench) -> str:
    """`vm check` with KVM or not at all, and what `doctor` remembers of it."""
    bench.partywall("vm prepare")
    text = bench.partywall("vm check --accel kvm", timeout_s=SLOW_S).text
    answered = re.search(r"the agent answered (.+) after QEMU was started", text)
    clock = re.search(r"clock is known to (± .+)", text)
    expect("accelerator: kvm" in text and answered is not None and clock is not None, text.strip())
    remembered = bench.partywall("doctor").text
    expect("/dev/kvm works" in " ".join(remembered.split()), "doctor does not say that KVM works")
    return (
        f"the agent answered {_found(answered)} after QEMU was started; the guest's clock is known to {_found(clock)}"
    )


def _found(match: re.Match[str] | None) -> str:
    return match[1].strip() if match else "?"


def held(bench: Bench) -> str:
    """A ceiling switched live and a weight, on the threads of virtual CPUs."""
    bench.partywall("vm prepare")
    kept = limits.short(bench, "guest-limits", timeout_s=SLOW_S)
    _under_kvm(bench, "guest-limits")
    return limits.judged(kept)


def _under_kvm(bench: Bench, run: str) -> None:
    warnings = {warning for cell in bench.findings(run)["cells"] for warning in cell["warnings"]}
    expect("emulated" not in warnings, f"the guests of {run} were emulated")


def users(bench: Bench) -> str:
    """Virtual users in a guest, against a server of the host."""
    bench.partywall("vm prepare")
    bench.as_root("systemctl start nginx")
    bench.shell("rm -rf guest-load")
    options = "--users 5 --for 10s --sandbox qemu --out guest-load"
    bench.partywall(f"load http://127.0.0.1/ {options}", *MEASURED, timeout_s=SLOW_S)
    table = bench.partywall("sql guest-load 'SELECT sum(requests) FROM seconds'").text
    requests = max(map(int, re.findall(r"\d+", table)), default=0)
    expect(requests > 0, "no request was answered")
    return f"{requests} requests in 10 s from a guest"


def trace(bench: Bench) -> str:
    """A datagram's way from a sender over a link, a card and a tap into a guest, whose agent traces it there."""
    bench.partywall("vm prepare")
    seen = _inside(bench, "guest_trace", benches=("trace_guest", "guests", "frame", "common", "results"))
    lost, sent, arrived = seen["lost"], seen["sent"], seen["arrived"]
    said = f"{arrived} of {sent} datagrams seen at all {seen['hops']} hops, "
    said += f"{units.format_duration(seen['into_guest_ns'])} from the tap into the guest, whose clock is known to "
    said += f"± {units.format_duration(seen['bound_ns'])}"
    expect(
        sent > 0 and arrived + lost == sent and lost == seen["dropped"],
        f"{said}; {lost} lost, {seen['dropped']} dropped",
    )
    return said


def domains(bench: Bench) -> str:
    """A domain that libvirt makes for a run, of type kvm, with a ceiling switched live."""
    bench.partywall("vm prepare")
    bench.as_root("systemctl start libvirtd.socket virtlogd.socket || systemctl start libvirtd")
    bench.shell("rm -rf domains")
    bench.partywall(f"run {SCENARIOS}/domains.yaml --out domains", *MEASURED, timeout_s=SLOW_S)
    _under_kvm(bench, "domains")
    kept = [
        limits.Kept(
            "ceiling of 50 %", 0.5, cell["isolation"]["value"], _half(cell["isolation"]), None, limits.POINTS_SHORT
        )
        for cell in bench.findings("domains")["cells"]
        if cell["role"] == "limit" and cell["isolation"]
    ]
    expect(bool(kept), "the run has no figure for the ceiling")
    return limits.judged(kept)


def _half(interval: dict[str, float]) -> float:
    return (interval["high"] - interval["low"]) / 2


def watts(bench: Bench) -> str:
    """The CPU time that a guest's watts come from, compared with the host's account of QEMU."""
    bench.partywall("vm prepare")
    seen = _inside(bench, "guest_power")
    said = (
        f"a busy guest used {seen['attributed_s']:.2f} s of {seen['span_s']:.1f} s, {seen['watts']:.1f} W (modelled); "
    )
    said += (
        f"QEMU ran for {seen['process_s']:.2f} s by the kernel's account, {seen['guest_s']:.2f} s of these as the guest"
    )
    busy = seen["guest_s"] > BUSY_SHARE * seen["span_s"]
    alike = abs(seen["attributed_s"] - seen["process_s"]) < ACCOUNTS_APART * seen["span_s"]
    expect(busy and alike and seen["watts"] > 0, said)
    return said


def tests(bench: Bench) -> str:
    """The tests of guests, from this clone, with guests under KVM."""
    # As root, like the tests.
    bench.as_root(f"{image.VENV}/bin/partywall vm prepare")
    return bench.tested(TESTS, 4 * SLOW_S, "PARTYWALL_TEST_ACCEL=kvm")


def _inside(bench: Bench, name: str, *arguments: str, benches: Sequence[str] = ()) -> dict[str, Any]:
    """What a program of inside/ saw: its last line. benches: the benchmarks that it imports."""
    if benches:
        bench.machine.bring([image.CLONE / "benches" / f"{each}.py" for each in benches], BENCHES)
    command = shlex.join(["python3", str(Path("/opt/try/inside") / f"{name}.py"), *arguments])
    output = bench.shell(f"PYTHONPATH={BENCHES} {command}", timeout_s=SLOW_S)
    expect(output.code == 0, f"{name}: {output.last}")
    return dict(json.loads(output.last))
