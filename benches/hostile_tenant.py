"""Can a tenant with all rights in its own network namespace harm its neighbours? At least 99 % of their guarantees.

Its namespace belongs to a user namespace of its own, in which it is root. It tries forged netlink answers while it
removes its hook, deletion of filters in a loop, queues and filters of its own and frames that pass no queue, segments
of one byte, small segments in a tunnel, floods of fragments, VLAN tags and tunnels, other names for its interface, a
decoy of its name, another namespace, and eBPF programs that hand packets to the host's end, as a privileged container
may load them; each against a new guard. The short form tries six of them. Two
neighbours send a little more than they are guaranteed, one of them in fragments, of a flow class. Against packets that
bypass a hook the tenant's ceiling is so high that the link is too small for all ceilings; against all else it is so low
that it binds.

The link takes single segments only. What was delivered is read at the sinks' ports, with the headers of each segment.
Nobody may pass 102 % of his ceiling, a burst and what a queue holds, in any second. Packets that bypassed a hook must
be among the guard's findings, and nothing else may be. The tenant's processes have a low weight: CPU time is not what
is tried here.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import guards
from frame import Options, Outcome, bench, in_parts
from hostile import CANNOT
from partywall.errors import CapabilityError
from partywall.guard.measure.run import Kept
from partywall.host.label import Label
from partywall.sandbox.lab import Counted, Lab, ip, lacking, sender

HOSTILE = "hostile"
LINK, WIRE = "95Mbit/s", "110mbit"
GUARANTEED_BPS = {"whole": 40e6, "parts": 40e6}
OFFERED = 1.1
CEILING_BPS = 60e6
BURST_S, HOLD_S, LARGEST = 0.010, 0.020, 65_536
# An unfragmented frame, and a datagram that leaves in six fragments.
BYTES = {"whole": 1514, "parts": 8042}
FRAGMENT_HEADERS = 6 * 34 - 34
FLOWS = {
    "data": {"protocol": "udp", "ports": "9", "guarantee": "40Mbit/s"},
    "tight": {"protocol": "udp", "ports": "7", "ceiling": "1Mbit/s"},
}
ROUND = frozenset({"repaired", "bypassed"})
BESIDE = frozenset({"exceeded"})
DECOY = frozenset({"decoy"})
BYPASSED = frozenset({"bypassed"})


@dataclass(frozen=True)
class Attack:
    """must and may: what the guard must find, and may find beside; anything but a repair makes its exit code 1.

    ceiling_bps: of the tenant. privileged: it may load eBPF programs, as a privileged container may. short: it is in
    the short form too.
    """

    must: frozenset[str] = frozenset()
    may: frozenset[str] = frozenset()
    ceiling_bps: float = 12e6
    privileged: bool = False
    short: bool = False


ATTACKS = {
    "forged answers": Attack(ROUND, BESIDE, CEILING_BPS, short=True),
    "filter deletion": Attack(ROUND, BESIDE, CEILING_BPS),
    "own queues": Attack(ROUND, BESIDE, CEILING_BPS, short=True),
    "own filter": Attack(BYPASSED, BESIDE, CEILING_BPS),
    "frames past queues": Attack(BYPASSED, BESIDE, CEILING_BPS),
    "redirect to the peer": Attack(BYPASSED, BESIDE, CEILING_BPS, privileged=True, short=True),
    "XDP": Attack(BYPASSED, BESIDE, CEILING_BPS, privileged=True),
    "tiny segments": Attack(short=True),
    "segments in a tunnel": Attack(),
    "fragments": Attack(),
    "framing": Attack(),
    "rename": Attack(frozenset({"repaired"})),
    "decoy": Attack(DECOY, ROUND | BESIDE, CEILING_BPS, short=True),
    "swap": Attack(DECOY, ROUND | BESIDE, CEILING_BPS),
    "another namespace": Attack(frozenset({"lost", "bypassed", "repaired"}), BESIDE, CEILING_BPS, short=True),
}


def vifs(ceiling_bps: float, whole_bps: float) -> dict[str, dict[str, Any]]:
    """Of the policy. ceiling_bps: of the tenant."""
    hostile = {"guarantee": "10Mbit/s", "ceiling": f"{ceiling_bps:.0f}bit/s", "packets": "20k/s"}
    send = {"guarantee": "40Mbit/s", "ceiling": f"{CEILING_BPS:.0f}bit/s"}
    whole = send | {"guarantee": f"{whole_bps:.0f}bit/s"}
    return {HOSTILE: {"send": hostile}, "whole": {"send": whole}, "parts": {"send": send, "flows": FLOWS}}


class HostileLab(Lab):
    """A lab in which one tenant's network namespace belongs to a user namespace of its own."""

    owner: subprocess.Popen[str] | None = None

    def _namespace(self, name: str) -> None:
        if name != self.namespace(HOSTILE):
            return super()._namespace(name)
        command = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", "echo ready; exec sleep infinity"]
        self.owner = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | self.label.environment
        )
        if self.owner.stdout is None or self.owner.stdout.readline() != "ready\n":
            raise CapabilityError("user namespaces are off here; set user.max_user_namespaces above 0")
        ip("netns", "attach", name, str(self.owner.pid))
        return None

    def remove(self) -> None:
        super().remove()
        if self.owner:
            self.owner.kill()
            self.owner.wait()

    def attack(self, name: str, seconds: float) -> subprocess.Popen[bytes]:
        """Starts an attack in the tenant's namespaces."""
        pid = str(self.owner.pid if self.owner else 0)
        number = self.names.index(HOSTILE) + 1
        macs = [f"02:00:00:00:0{side}:{number:02x}" for side in (1, 2)]
        script = str(Path(__file__).with_name("hostile.py"))
        user = [] if ATTACKS[name].privileged else ["--user", "--preserve-credentials"]
        inside = ["nsenter", "-t", pid, "--net", *user, "nice", "-n", "15"]
        where = [*macs, f"10.9.1.{number}", self.address(HOSTILE)]
        return subprocess.Popen(
            [*inside, sys.executable, script, name, f"{seconds:g}", *where], env=os.environ | self.label.environment
        )


@contextlib.contextmanager
def hostile_lab() -> Iterator[HostileLab]:
    if why := lacking():
        raise CapabilityError(why)
    made = HostileLab([HOSTILE, *GUARANTEED_BPS], WIRE, Label.create(f"pw{os.getpid()}", Path(tempfile.gettempdir())))
    try:
        made.build()
        ip("-n", made.namespace("switch"), "link", "set", "nic", "gso_max_segs", "1")
        yield made
    finally:
        made.remove()


@dataclass(frozen=True)
class Tried:
    """kept: the least part of its guarantee that a neighbour got; over: the fullest second, over what may pass."""

    kept: float
    over: float
    delivered: Mapping[str, float]
    findings: Mapping[str, int]
    latest: str


def tried(made: HostileLab, attack: str, seconds: float, whole_bps: float) -> Tried | None:
    """None if the kernel does not let the tenant try. whole_bps: what the policy guarantees the neighbour `whole`."""
    ceilings = dict.fromkeys(GUARANTEED_BPS, CEILING_BPS) | {HOSTILE: ATTACKS[attack].ceiling_bps}
    with guards.guarded(made, vifs(ceilings[HOSTILE], whole_bps), LINK) as kept:
        with contextlib.ExitStack() as senders:
            for name, bytes_ in BYTES.items():
                on_link = bytes_ + (FRAGMENT_HEADERS if name == "parts" else 0)
                pps = OFFERED * GUARANTEED_BPS[name] / 8 / on_link
                senders.enter_context(sender(made, name, bytes_, pps, batch=1 if name == "parts" else 16))
            # Until the guard knows what they want.
            time.sleep(1)
            process = made.attack(attack, seconds)
            readings = [made.read()]
            while process.poll() is None:
                time.sleep(0.1)
                readings.append(made.read())
            if process.returncode == CANNOT:
                return None
            if process.returncode:
                raise RuntimeError(f"the attack {attack!r} failed")
        # The last second's findings come with the next report.
        time.sleep(2)
        notes = [note for report in reports(kept) for note in report]
    rates = readings[0].rates(readings[-1])
    delivered = {name: bps for name, (bps, _) in rates.items()}
    kept_part = min(delivered[name] / bps for name, bps in GUARANTEED_BPS.items())
    over = max(fullest(readings, name, bps) for name, bps in ceilings.items())
    findings: dict[str, int] = {}
    for _, kind, _ in notes:
        findings[kind] = findings.get(kind, 0) + 1
    return Tried(kept_part, over, delivered, findings, notes[-1][2] if notes else "")


def reports(kept: Kept) -> Iterator[tuple[tuple[str, str, str], ...]]:
    while report := kept.report(0.1):
        yield report.notes


def fullest(readings: list[Counted], name: str, ceiling_bps: float) -> float:
    """The most that was delivered in a second, over what may pass in it."""
    return guards.fullest(
        readings, name, 1e9, lambda bits, s: bits / (ceiling_bps * (1.02 * s + BURST_S + HOLD_S) + 8 * LARGEST)
    )


def part(attack: str, seconds: float, whole_bps: float) -> dict[str, Any] | None:
    """An attack in a lab of its own, told as it ends. None if the kernel does not let the tenant try."""
    with hostile_lab() as made:
        outcome = tried(made, attack, seconds, whole_bps)
    if outcome is None:
        return None
    rates = ", ".join(f"{name} {bps / 1e6:.1f}" for name, bps in outcome.delivered.items())
    named = ", ".join(f"{kind} {count}" for kind, count in sorted(outcome.findings.items())) or "nothing"
    print(f"{attack}: delivered {rates} Mb/s; neighbours {outcome.kept:.1%} of their guarantee; found {named}")
    if outcome.latest:
        print(f"  latest: {outcome.latest}", flush=True)
    return asdict(outcome)


@bench(plants={"half": "the kernel guarantees a neighbour half of its due"}, folder=True)
def main(options: Options) -> Outcome:
    seconds = 5.0 if options.quick else 60.0
    kernel_bps = GUARANTEED_BPS["whole"] / (2 if options.plant else 1)
    attacks = [name for name, attack in ATTACKS.items() if attack.short or not options.quick]
    every = in_parts({attack: partial(part, attack, seconds, kernel_bps) for attack in attacks}, options)
    by_attack = {attack: Tried(**outcome) for attack, outcome in every.items() if outcome is not None}
    wrong = []
    for attack, outcome in by_attack.items():
        kinds, wanted = set(outcome.findings), ATTACKS[attack]
        if not wanted.must <= kinds <= wanted.must | wanted.may:
            wrong.append(attack)
    kept = min(outcome.kept for outcome in by_attack.values())
    over = max(outcome.over for outcome in by_attack.values())
    figure = f"neighbours at least {kept:.1%} of their guarantees beside {len(by_attack)} attacks (bar 99 %)"
    figure += f"; fullest second {over:.1%} of the limit (bar 100 %)"
    figure += f"; the guard's findings are wrong for {', '.join(wrong)}" if wrong else "; every bypass was found"
    if untried := sorted(set(every) - set(by_attack)):
        figure += f"; the kernel does not permit {', '.join(untried)}"
    return Outcome(figure, kept >= 0.99 and over <= 1 and not wrong)


if __name__ == "__main__":
    main()
