"""Starts QEMU for a machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from partywall.errors import CapabilityError
from partywall.host import Host, install
from partywall.host.label import Label
from partywall.sandbox.qemu.machine import PROGRAM, Machine


def launched(machine: Machine, label: Label) -> subprocess.Popen[bytes]:
    """Starts QEMU in its own process group, because the controller handles Ctrl-C.

    Its standard streams are pipes, which the caller reads. With a stream of its own for the agent, nobody reads what
    QEMU says before its end: it goes into a file, of which `stderr` is the reading end, so a full pipe never stops it.
    """
    argv = machine.argv()
    if not shutil.which(argv[0]):
        remedy = install(Host.here(), "util-linux")
        raise CapabilityError(f"{argv[0]} was not found, so {PROGRAM} cannot be tied to us; {remedy}")
    environment = os.environ | label.environment | {"TMPDIR": str(label.work)}
    if machine.stream is None:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, pass_fds=[machine.qmp], process_group=0
        )
    with unread(label.work) as (written, read):
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=written, stderr=written, env=environment,
            pass_fds=[machine.qmp, machine.stream], process_group=0,
        )  # fmt: skip
        process.stderr = read
    return process


@contextlib.contextmanager
def unread(folder: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """The two ends of a file for messages that nobody reads as they come. It has no name, and ends with its readers."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix="messages-") as named, Path(named.name).open("ab") as written:
        yield written, Path(named.name).open("rb")  # noqa: SIM115 - for whoever asks what was said
