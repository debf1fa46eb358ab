"""Is the one bad host of three named, on real hosts? Over ssh to three guests, and on three nodes of a real Slurm.

One host of three has a CPU limit that nobody told the fleet of, in parts shorter than a slot: a fifth of a CPU, or half
of an emulated one, whose Python would take too long with less. From an inventory to the report: every host is measured
once, by its own ledger, and that one is named as worse. The guests are stock Debian in QEMU, which get Partywall as a
wheel. The nodes of Slurm are this host, each with a ledger of its own; the limit is that of the cgroup of one slurmd.

--quick: Slurm alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from frame import NotMeasured, Options, Outcome, bench
from labs.hosts import image
from labs.hosts.bench import Bench as OnHost
from labs.hosts.catalogue import HOSTS
from labs.hosts.checks import CHECKS
from labs.hosts.lab import newest_wheel
from labs.hosts.machine import NUMPY_WITHOUT_AVX2, Machine
from tests import limited_group, slurm_cluster

NAMES, BAD = ("sound", "limited", "sane"), "limited"
SCENARIO = """
partywall: 1
name: one-neighbour
victims: {integer: {probe: integer}}
aggressors: {busy: {stressor: integer}}
budget: 8s
"""
SOURCE = Path(__file__).resolve().parents[1] / "src"
NODE_CPUS, GUEST_CPUS = 0.2, 0.5
PLANTS = {"none": "no host has a limit"}


@dataclass(frozen=True)
class Found:
    """What came of one fleet. begun: how often each host began, by its own ledger."""

    how: str
    worse: list[str]
    measured: list[str]
    begun: Mapping[str, int]
    seconds: float

    @property
    def is_right(self) -> bool:
        return self.worse == [BAD] and sorted(self.measured) == sorted(NAMES) and set(self.begun.values()) == {1}

    def __str__(self) -> str:
        named = ", ".join(self.worse) or "nobody"
        return f"{self.how}: {named} named of {len(self.measured)} hosts in {self.seconds:.0f} s"


def measured(how: str, inventory: str, folder: Path, at_once: int, env: Mapping[str, str] = os.environ) -> Any:
    """Measures the fleet of an inventory; its result, and the seconds that it took."""
    (folder / "hosts.ini").write_text(inventory)
    (folder / "scenario.yaml").write_text(SCENARIO)
    words = [str(folder / "hosts.ini"), str(folder / "scenario.yaml"), f"--engine={how}", f"--at-once={at_once}"]
    argv = [sys.executable, "-P", "-m", "partywall", "fleet", "run", *words, "--every=1s", f"--out={folder / 'fleet'}"]
    began = time.monotonic()
    done = subprocess.run([*argv, "--format=json"], stdout=subprocess.PIPE, text=True, check=False, env=env)
    document = json.loads(done.stdout)
    if document["result"] is None:
        raise RuntimeError(f"{how}: {document['problems']}")
    return document["result"], time.monotonic() - began


def found(how: str, result: Mapping[str, Any], seconds: float, ledgers: Mapping[str, str]) -> Found:
    begun = {
        name: sum(json.loads(line)["what"] == "began" for line in text.splitlines()) for name, text in ledgers.items()
    }
    return Found(
        how, list(result["worse"]), list(dict.fromkeys(row["host"] for row in result["figures"])), begun, seconds
    )


def on_slurm(is_limited: bool) -> Found:
    small = limited_group.limited(NODE_CPUS) if is_limited else contextlib.nullcontext()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name, small as group:
        folder = Path(name)
        cluster = slurm_cluster.SlurmCluster(folder, {host: group if host == BAD else None for host in NAMES})
        try:
            lines = []
            for host in NAMES:
                (folder / host / "ledger").mkdir(mode=0o700, parents=True)
                lines.append(f"{host} partywall_ledger={folder}/{host}/ledger partywall_state={folder}/{host}/state")
            shared = f"partywall_python={sys.executable}\npartywall_path={SOURCE}\n"
            inventory = "\n".join(["[rack]", *lines, "[rack:vars]", shared])
            env = os.environ | {"SLURM_CONF": str(cluster.configuration)}
            # All at once: these nodes share the CPUs of this host, so that what else runs here meets all alike.
            result, seconds = measured("slurm", inventory, folder, len(NAMES), env)
            ledgers = {host: (folder / host / "ledger/ledger.jsonl").read_text() for host in NAMES}
        finally:
            cluster.cancel_all()
            cluster.stop()
    return found("slurm", result, seconds, ledgers)


def on_guests(is_limited: bool) -> Found:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name, contextlib.ExitStack() as stack:
        folder, lines, machines = Path(name), [], {}
        for host in NAMES:
            stock = replace(HOSTS["debian-13"], name=host)
            built = image.built(stock.image, lambda text: print(text, flush=True))
            machine = stack.enter_context(Machine(stock, built, "tcg", folder / f"{host}.log", print))
            CHECKS["install"](OnHost(machine, newest_wheel(), folder))
            # QEMU emulates some vector instructions wrongly.
            python = f'#!/bin/sh\n{NUMPY_WITHOUT_AVX2}exec {image.VENV}/bin/python "$@"\n'
            machine.run(f"printf %s {shlex.quote(python)} > /opt/python && chmod 755 /opt/python")
            if is_limited and host == BAD:
                limit = f"CPUQuota={GUEST_CPUS:.0%} CPUQuotaPeriodSec={limited_group.PERIOD_US // 1000}ms"
                # Requests are in the first, runs in the other.
                for part in ("user.slice", "system.slice"):
                    machine.run(f"systemctl set-property --runtime {part} {limit}")
            machines[host] = machine
            lines.append(f"{host} ansible_port={machine.port}")
        options = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o IdentitiesOnly=yes -o LogLevel=ERROR"
        shared = (
            f"ansible_host=127.0.0.1\nansible_user=root\nansible_ssh_private_key_file={image.key()}\n"
            f"ansible_ssh_common_args='{options}'\npartywall_python=/opt/python\n"
        )
        inventory = "\n".join(["[rack]", *lines, "[rack:vars]", shared])
        # One after the other: emulated guests share this host's CPUs.
        result, seconds = measured("ssh", inventory, folder, 1)
        read = "cat /var/tmp/partywall-fleet-0/ledger.jsonl"
        ledgers = {host: machine.run(read).text for host, machine in machines.items()}
    return found("ssh to guests", result, seconds, ledgers)


def lacking() -> str:
    return slurm_cluster.lacking() or limited_group.lacking()


@bench(plants=PLANTS, lacking=lacking, unjudged="guests")
def main(options: Options) -> Outcome:
    is_limited = not options.plant
    ways = [on_slurm(is_limited)]
    if not options.quick:
        if not image.CACHE.exists():
            raise NotMeasured("no image of a stock host is there; run make hosts")
        ways.append(on_guests(is_limited))
    return Outcome("; ".join(map(str, ways)), all(way.is_right for way in ways))


if __name__ == "__main__":
    main()
