"""How soon a guest's agent answers, alone and four at a time, and what a KVM that carries nothing costs.

For one guest two times are printed: what a user waits, from starting QEMU on, firmware and control channel included;
and what the guest's own clock, which begins with its kernel, shows once the agent has said hello. One guest and four in
parallel are measured in turn, these by what a user waits.

Bar: from QEMU's start to the hello 3 s at the median; four in parallel within 2.5 times one; finding that KVM is dead
within 10 s, once, on this host and with a KVM whose guests hang. The guest's own time is not judged, because its clock
may stand still while it is stopped.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from frame import Options, Outcome, bench
from guests import client, come_up, guests, lacking
from partywall.core import here
from partywall.sandbox import Sandbox, qemu
from partywall.sandbox.qemu import Accelerator
from partywall.sandbox.qemu.machine import PROGRAM


def seconds(count: int, stopped_s: float = 0.0) -> tuple[float, float]:
    """What a user waits, and the time since the first guest's kernel started. stopped_s: how long it is stopped."""
    with guests(count) as made:
        if stopped_s:
            threading.Thread(target=stop, args=(made[0], stopped_s)).start()
        waited = come_up(made)
        return waited, client(made[0]).call("clock")["monotonic_ns"] / 1e9


def stop(guest: Sandbox, for_s: float) -> None:
    """Stops a guest that is booting."""
    while not guest.pid:
        time.sleep(0.05)
    time.sleep(1.0)
    os.kill(guest.pid, signal.SIGSTOP)
    time.sleep(for_s)
    os.kill(guest.pid, signal.SIGCONT)


# Under KVM a QEMU whose guest never says a word, as where nested page tables are missing; else the host's own.
HANGING = """#!/bin/sh
case "$*" in *"-accel kvm"*) exec sleep 600;; esac
exec {qemu} "$@"
"""


@contextlib.contextmanager
def changed(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@dataclass(frozen=True)
class FallBack:
    """What the first and the second `accel: auto` cost where nothing is remembered, and what came of it."""

    first_s: float
    second_s: float
    chosen: Accelerator


def falling_back(*, hanging: bool) -> FallBack:
    """hanging: with a QEMU that hangs under KVM in the place of this host's."""
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / PROGRAM
        if hanging:
            own.write_text(HANGING.format(qemu=shutil.which(PROGRAM)))
            own.chmod(0o755)
        with changed(PARTYWALL_STATE=f"{folder}/state", PATH=f"{folder}:{os.environ['PATH']}"):
            began = time.monotonic()
            chosen = qemu.choose("auto", here.this_host())
            first = time.monotonic() - began
            began = time.monotonic()
            qemu.choose("auto", here.this_host())
            return FallBack(first, time.monotonic() - began, chosen)


@bench(plants={"stopped": "each guest is stopped for 3.5 s while it boots"}, lacking=lacking)
def main(options: Options) -> Outcome:
    rounds = 2 if options.quick else 8
    alone, four = [], []
    for number in range(rounds):
        alone.append(seconds(1, stopped_s=3.5 if options.plant else 0.0))
        four.append(seconds(4))
        (lone, kernel), (all_four, _) = alone[-1], four[-1]
        print(f"round {number}: one {lone:.2f} s, of it {kernel:.2f} s its kernel's; four {all_four:.2f} s", flush=True)
    backs = {"this host's KVM": falling_back(hanging=False), "a KVM that hangs": falling_back(hanging=True)}
    for what, back in backs.items():
        times = f"{back.first_s:.1f} s the first time, {back.second_s:.2f} s the second"
        print(f"{what}: accel: auto chose {back.chosen.name} in {times} ({back.chosen.why})", flush=True)
    first, second = max(b.first_s for b in backs.values()), max(b.second_s for b in backs.values())
    dead = backs["a KVM that hangs"].chosen.emulates
    lone, kernel = (statistics.median(times) for times in zip(*alone, strict=True))
    ratio = statistics.median(all_four / lone for (all_four, _), (lone, _) in zip(four, alone, strict=True))
    figure = f"one guest {lone:.2f} s from QEMU's start ({kernel:.2f} s by its own clock), four {ratio:.2f} times one"
    figure += f", accel: auto {first:.1f} s once"
    return Outcome(figure, lone <= 3 and ratio <= 2.5 and first <= 10 and second < 1 and dead)


if __name__ == "__main__":
    main()
