"""Keeps a sender of 20 Mbit/s at a ceiling of 2, and says what the receiver's interface counted, as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from namespaces import NAMES, guarding, in_background, joined, received, run

CEILING = 2_000_000
POLICY = Path(__file__).with_name("policy.yaml")
SPAN_S = 6.0


def main() -> int:
    with joined():
        guard = guarding(POLICY)
        sender = in_background(130, 2000, 1250)
        if not kept(guard):
            os.kill(sender, 9)
            sys.stdout.write(guard.communicate()[0])
            return guard.wait()
        before, began = received(), time.monotonic()
        time.sleep(SPAN_S)
        after, ended = received(), time.monotonic()
        guard.send_signal(2)
        # Its output is searched by the check, as all output is.
        print(guard.communicate()[0])
        os.kill(sender, 9)
        if guard.returncode:
            return guard.returncode
        bps = (after["rx_bytes"] - before["rx_bytes"]) * 8 / (ended - began)
        print(json.dumps({"bps": bps, "ceiling": CEILING, "kept": bps / CEILING, "left": left()}))
        return 0


def kept(guard: subprocess.Popen[str], deadline_s: float = 100.0) -> bool:
    """Waits until less arrives than is sent; False if the guard ended first."""
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        if guard.poll() is not None:
            return False
        before, began = received(), time.monotonic()
        time.sleep(1)
        bps = (received()["rx_bytes"] - before["rx_bytes"]) * 8 / (time.monotonic() - began)
        if 0 < bps < 2 * CEILING:
            return True
    guard.kill()
    print(f"nothing was held back within {deadline_s:.0f} s")
    return False


def left() -> list[str]:
    """Queues and hooks that were not there before."""
    shown = run(f"tc -n {NAMES[0]} qdisc show dev va").stdout.splitlines()
    return [line for line in shown if "noqueue" not in line]


sys.exit(main())
