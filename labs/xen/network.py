"""The guard in the driver domain's kernel: two PV guests share a link, one floods it, the other has a guarantee.

`partywall guard run` runs in dom0 and finds the guests' interfaces through libvirt. What arrives is counted by dom0's
kernel at the ports of two sinks behind the link, independently of the guard. Rates are small, for all is emulated.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import xml.etree.ElementTree as ET  # what is read is our own
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Any, Protocol

from labs.building import Say
from labs.xen.build import GUESTS, HERE, SENDER, SITE
from labs.xen.machine import Lab
from partywall.errors import TrialError
from partywall.sandbox import Settings
from partywall.sandbox.libvirt.domain import Boot, definition
from partywall.sandbox.libvirt.leftovers import destroy
from partywall.sandbox.libvirt.library import connect, libvirt_errors

BRIDGE, LINK_BPS = "xenbr0", 8_000_000
# The steady guest offers less than its guarantee, and the flooding one all it can.
STEADY, FLOOD = "steady", "flood"
GUARANTEE_BPS, OFFERED_BPS, CEILING_BPS = 4_500_000, 4_000_000, 3_000_000
FRAME_BYTES, HEADERS = 1000, 14 + 20 + 8
GUEST_BYTES, GUEST_CPU = 192 << 20, 1
# The number of each guest in addresses, and what it offers; None: all it can.
SENDERS: dict[str, tuple[int, int | None]] = {STEADY: (1, OFFERED_BPS), FLOOD: (2, None)}
SETTLE_S, SPAN_S, LATE, TRIES = 3, 12, 1.5, 4
BOOT_S, HOOKED_S, GONE_S = 300.0, 180.0, 180.0
# Packets by which a guest is known to send.
SOME = 100
# An emulated guest sends in bursts, of which its bucket and the link drop some.
ABOVE, BELOW = 0.05, 0.1
POLICY, PID = "/tmp/xen-lab.yaml", "/tmp/guard.pid"  # noqa: S108 - in dom0, which is ours alone
GUARD = f"cd /tmp && echo $$ > {PID} && export PYTHONPATH={GUESTS}/src:{SITE} && exec python3 -m partywall guard"


class Dom0(Protocol):
    """Where the guard runs: a place that takes shell commands."""

    def shell(self, command: str) -> list[str]: ...
    def run(self, command: str, text: str = "") -> str: ...


@dataclass(frozen=True)
class Rates:
    """Bit/s of whole frames that a guest sent, and that arrived behind the link."""

    sent_bps: float
    arrived_bps: float


@dataclass(frozen=True)
class Held:
    """Rates of the guests without the guard, with it, and after it. left: hooks that it left. kernel: dom0's."""

    free: Mapping[str, Rates]
    guarded: Mapping[str, Rates]
    after: Mapping[str, Rates]
    left: tuple[str, ...]
    kernel: str
    xen: str

    @property
    def faults(self) -> list[str]:
        """What was not as promised; empty if all was."""
        steady, flood = self.guarded[STEADY], self.guarded[FLOOD]
        said = []
        if self.free[FLOOD].sent_bps < 2 * LINK_BPS:
            said.append(f"the flood is only {_mbit(self.free[FLOOD].sent_bps)}, too little to show anything")
        if flood.arrived_bps > CEILING_BPS * (1 + ABOVE):
            said.append(f"{_mbit(flood.arrived_bps)} passed a ceiling of {_mbit(CEILING_BPS)}")
        if steady.arrived_bps < min(steady.sent_bps, GUARANTEE_BPS) * (1 - BELOW):
            said.append(f"only {_mbit(steady.arrived_bps)} of {_mbit(steady.sent_bps)} arrived of the steady guest")
        if self.left:
            said.append(f"the guard left {', '.join(self.left)}")
        return said

    def table(self) -> str:
        """A line for each phase."""
        phases = {"without the guard": self.free, "with it": self.guarded, "after it": self.after}
        return "\n".join(f"{phase}: {_row(measured)}" for phase, measured in phases.items())


def _row(measured: Mapping[str, Rates]) -> str:
    return ", ".join(f"{name} {_mbit(at.arrived_bps)} of {_mbit(at.sent_bps)}" for name, at in measured.items())


def _mbit(bps: float) -> str:
    return f"{bps / 1e6:.2f} Mbit/s"


def policy() -> dict[str, Any]:
    """The guard's policy for the two guests, by the names of their domains."""
    return {
        "partywall_guard": 1,
        "name": "xen-lab",
        "link": {"interface": "nic", "capacity": f"{LINK_BPS}bit/s"},
        "service_classes": {"only": 1},
        "vifs": {
            STEADY: {
                "domain": domain(STEADY),
                "service_class": "only",
                "send": {"guarantee": f"{GUARANTEE_BPS}bit/s"},
            },
            FLOOD: {"domain": domain(FLOOD), "service_class": "only", "send": {"ceiling": f"{CEILING_BPS}bit/s"}},
        },
    }


def domain(name: str) -> str:
    """The libvirt domain of a guest."""
    return f"partywall-lab-{name}"


def guest(name: str) -> str:
    """The XML of a PV guest with an interface on the bridge, which sends datagrams to its sink once it is up."""
    number, rate_bps = SENDERS[name]
    settings = Settings(name=name, backend="libvirt", cpus=(GUEST_CPU,), memory=GUEST_BYTES)
    folder = PurePath(GUESTS) / SENDER
    boot = Boot(folder / "vmlinuz", folder / "initramfs")
    tree = ET.fromstring(definition(settings, domain(name), "xen", boot, None))  # noqa: S314 - our own text
    arguments, devices = tree.find("os/cmdline"), tree.find("devices")
    if arguments is None or devices is None:
        raise TrialError(f"the definition of {domain(name)} has no kernel arguments or no devices")
    rate = "null" if rate_bps is None else f"{rate_bps / 8 / FRAME_BYTES:g}"
    own = f"198.18.1.{number}/16 198.18.2.{number}:9 {FRAME_BYTES - HEADERS} {rate}"
    arguments.text = f"{arguments.text} {own}"
    interface = ET.SubElement(devices, "interface", type="bridge")
    ET.SubElement(interface, "mac", address=f"00:16:3e:00:00:{number:02x}")
    ET.SubElement(interface, "source", bridge=BRIDGE)
    return ET.tostring(tree, encoding="unicode")


@contextlib.contextmanager
def guests(lab: Lab, say: Say) -> Iterator[dict[str, str]]:
    """Both guests while the block runs, and the interfaces that dom0 has of them. They send from the start."""
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(contextlib.closing(connect(lab.uri)))
        for name in SENDERS:
            with libvirt_errors(f"guest {name}"):
                stack.callback(destroy, connection.createXML(guest(name), 0))
        vifs = {name: lab.run(f"virsh --quiet domiflist --domain {domain(name)}").split()[0] for name in SENDERS}
        began = time.monotonic()
        while not all(int(lab.run(f"cat /sys/class/net/to-{name}/statistics/tx_packets")) > SOME for name in vifs):
            if time.monotonic() - began > BOOT_S:
                raise TrialError(f"the guests with a network sent nothing within {BOOT_S:.0f} s")
            time.sleep(2)
        say(f"two guests with a network send after {time.monotonic() - began:.0f} s")
        yield vifs


def counters(vifs: Mapping[str, str]) -> str:
    """The shell command that reads the time, and packets of every guest: sent, and arrived behind the link.

    Not bytes, for Xen's driver does not count Ethernet headers, and other interfaces do.
    """
    files = " ".join(
        f"/sys/class/net/{vif}/statistics/rx_packets /sys/class/net/to-{name}/statistics/tx_packets"
        for name, vif in vifs.items()
    )
    return f"cut -d' ' -f1 /proc/uptime; cat {files}"


def span_s(text: str, guests: int) -> float:
    """Seconds between two readings of so many guests."""
    first, second = _readings(text, guests)
    return second[0] - first[0]


def _readings(text: str, guests: int) -> tuple[list[float], list[float]]:
    """Two readings. TrialError if the text is not that."""
    words, half = text.split(), 1 + 2 * guests
    if len(words) != 2 * half:
        raise TrialError(f"dom0's counters cannot be read: {text[:200]!r}")
    numbers = [float(word) for word in words]
    return numbers[:half], numbers[half:]


def rates(text: str, names: tuple[str, ...]) -> dict[str, Rates]:
    """Rates from the output of two readings."""
    first, second = _readings(text, len(names))
    seconds = second[0] - first[0]
    bps = [(late - early) * FRAME_BYTES * 8 / seconds for early, late in zip(first[1:], second[1:], strict=True)]
    return {name: Rates(bps[2 * at], bps[2 * at + 1]) for at, name in enumerate(names)}


def tried(lab: Lab, say: Say) -> Held:
    """Measures what arrives of both guests without the guard, with it, and after it."""
    lab.run(f"sh -s {LINK_BPS}bit {' '.join(SENDERS)}", (HERE / "dom0-network").read_text())
    lab.run(f"cat > {POLICY}", json.dumps(policy()))
    kernel, *xen = lab.run("uname -r; cat /sys/hypervisor/version/major /sys/hypervisor/version/minor").split()
    with guests(lab, say) as vifs:
        free = measured(lab, vifs)
        with guarding(lab, vifs, say):
            guarded = measured(lab, vifs)
        left = hooks(lab, vifs)
        after = measured(lab, vifs)
    return Held(free, guarded, after, left, kernel, ".".join(xen))


def measured(lab: Dom0, vifs: Mapping[str, str]) -> dict[str, Rates]:
    """Rates of the guests over the next seconds, after some in which they settle.

    TrialError if the machine stood still each time: its clock went on, and nothing was sent.
    """
    reading = counters(vifs)
    for _ in range(TRIES):
        text = lab.run(f"sleep {SETTLE_S}; {reading}; sleep {SPAN_S}; {reading}")
        if span_s(text, len(vifs)) < LATE * SPAN_S:
            return rates(text, tuple(vifs))
    raise TrialError(f"the emulated machine stood still in each of {TRIES} spans of {SPAN_S} s; try on a quieter host")


def hooks(lab: Dom0, vifs: Mapping[str, str]) -> tuple[str, ...]:
    """The places for hooks that the guests' interfaces have now."""
    lines = "".join(lab.run(f"tc qdisc show dev {vif}") for vif in vifs.values()).splitlines()
    return tuple(line for line in lines if "clsact" in line)


@contextlib.contextmanager
def guarding(lab: Dom0, vifs: Mapping[str, str], say: Say) -> Iterator[None]:
    """The guard in dom0 while the block runs. TrialError if it does not start, or finds anything wrong."""
    pipe = subprocess.PIPE
    argv = lab.shell(f"{GUARD} run {POLICY}")
    guard = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT, text=True)
    try:
        began = time.monotonic()
        hooked = _until_hooked(lab, vifs, guard)
        say(
            f"the guard {'has its hooks in dom0' if hooked else 'did not start'} after {time.monotonic() - began:.0f} s"
        )
        if hooked:
            yield
            lab.run(f"kill -TERM $(cat {PID})")
        output = guard.communicate(timeout=GONE_S)[0]
    except BaseException:
        guard.kill()
        guard.wait()
        raise
    if guard.returncode or not hooked:
        raise TrialError(f"the guard in dom0 ended with exit code {guard.returncode}: {output[-2000:]}")


def _until_hooked(lab: Dom0, vifs: Mapping[str, str], guard: subprocess.Popen[str]) -> bool:
    """Waits until the guard has its hooks; False if it ended or took too long."""
    until = time.monotonic() + HOOKED_S
    while guard.poll() is None and time.monotonic() < until:
        if len(hooks(lab, vifs)) == len(vifs):
            return True
        time.sleep(2)
    guard.kill()
    return False


def kept(lab: Lab, out: Path, say: Say) -> bool:
    """Whether the guard kept its promises in dom0. What was seen is written to guard.json in `out`."""
    seen = tried(lab, say)
    out.mkdir(parents=True, exist_ok=True)
    (out / "guard.json").write_text(json.dumps(asdict(seen), indent=1))
    say(f"Xen {seen.xen}, dom0's Linux {seen.kernel}, emulated; the rates that arrived and were sent:\n{seen.table()}")
    say("; ".join(seen.faults) or "the guard's ceiling and guarantee hold in dom0")
    return not seen.faults
