"""Starts QEMU for a machine."""

from __future__ import annotations

import os
import shutil
import subprocess

from partywall.errors import CapabilityError
from partywall.host import Host, install
from partywall.sandbox.label import Label
from partywall.sandbox.qemu.machine import PROGRAM, Machine


def launched(machine: Machine, label: Label) -> subprocess.Popen[bytes]:
    """Starts QEMU in its own process group, because the controller handles Ctrl-C. Its standard streams are pipes."""
    argv = machine.argv()
    if not shutil.which(argv[0]):
        remedy = install(Host.here(), "util-linux")
        raise CapabilityError(f"{argv[0]} was not found, so {PROGRAM} cannot be tied to us; {remedy}")
    pipe = subprocess.PIPE
    environment = os.environ | label.environment | {"TMPDIR": str(label.work)}
    inherited = [machine.qmp] if machine.stream is None else [machine.qmp, machine.stream]
    return subprocess.Popen(
        argv, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, pass_fds=inherited, process_group=0
    )
