"""What benchmarks of the guard share: a policy that is kept in a lab, iperf3 there, and the fullest window."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from common import program
from partywall.guard.document import Policy
from partywall.guard.measure.flatten import Flat, flatten
from partywall.guard.measure.resolve import resolve
from partywall.guard.measure.run import Kept, keep
from partywall.sandbox.lab import Counted, Lab
from partywall.study.promises.lab import policy

# Of a full frame; timestamps are on.
PAYLOAD = 1448 / 1514


def flat(content: Mapping[str, Any]) -> Flat:
    kept = Policy.model_validate(content)
    return flatten(kept, resolve(kept))


def guarded(
    made: Lab, vifs: Mapping[str, Mapping[str, Any]], capacity: str = "1Gbit/s", **more: Any
) -> contextlib.AbstractContextManager[Kept]:
    """A guard that keeps the promises of vifs on a link while the block runs. more: keys of the policy."""
    return keep(flat(policy(made, vifs, capacity, **more)))


def has_fq() -> bool:
    """Whether packets of a guard wait in fq here; else in tbf. Tried in a network namespace that ends at once."""
    command = ["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", "fq"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def fullest(readings: Sequence[Counted], name: str, window_ns: float, over: Callable[[float, float], float]) -> float:
    """The most that was delivered in a window. over: of bits and seconds, the share of what may be delivered."""
    most = 0.0
    for at, begun in enumerate(readings):
        ended = next((each for each in readings[at + 1 :] if each.at_ns - begun.at_ns >= window_ns), None)
        if ended is None:
            break
        bits = (ended.bytes[name] - begun.bytes[name]) * 8
        most = max(most, over(bits, (ended.at_ns - begun.at_ns) / 1e9))
    return most


@contextlib.contextmanager
def server(space: str) -> Iterator[None]:
    """A server of iperf3 in a namespace."""
    command = ["ip", "netns", "exec", space, "iperf3", "-s"]
    with program(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        time.sleep(0.3)
        yield


def client(space: str, to: str, seconds: float, *options: str) -> subprocess.Popen[str]:
    """A client of iperf3, whose first second does not count unless `options` say otherwise."""
    command = ["ip", "netns", "exec", space, "iperf3", "-c", to, "-t", f"{seconds:g}", "-O", "1", "-J", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def ended(running: subprocess.Popen[str], within_s: float = 180) -> dict[str, Any]:
    """What a client measured. Ends the benchmark with its error if it measured nothing."""
    said = json.loads(running.communicate(timeout=within_s)[0] or "{}")
    if "sum_received" not in said.get("end", {}):
        raise SystemExit(f"iperf3: {said.get('error', 'no result')}")
    return dict(said["end"])


def received(running: subprocess.Popen[str], within_s: float = 180) -> float:
    """Bit/s of payload that arrived."""
    return float(ended(running, within_s)["sum_received"]["bits_per_second"])
