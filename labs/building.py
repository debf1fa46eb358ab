"""What labs share: running programs, choosing packages, writing disks, ports and drives of emulated machines."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from partywall.errors import CapabilityError, TrialError

Say = Callable[[str], None]


def need(tools: Sequence[str], target: str) -> None:
    """CapabilityError if a tool is missing, or if we are not root, whom building a root file system needs."""
    if os.geteuid() != 0:
        raise CapabilityError("building a machine's root file system needs root; run with sudo")
    for tool in tools:
        if not shutil.which(tool):
            raise CapabilityError(f"{tool} was not found; {target} installs it")


def run(*argv: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Standard output; TrialError with the last line of a program's output if it fails."""
    words = [str(word) for word in argv]
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise TrialError(f"{' '.join(words[:3])}: {lines[-1] if lines else f'exit status {done.returncode}'}")
    return done.stdout


def disk(image: Path, content: Path, mebibytes: int) -> None:
    """Writes an ext4 image that holds what a folder holds. The file is sparse."""
    part = image.with_suffix(".part")
    part.unlink(missing_ok=True)
    with part.open("wb") as file:
        file.truncate(mebibytes << 20)
    run("mkfs.ext4", "-q", "-F", "-d", content, part)
    part.rename(image)


def drive(name: str, image: Path) -> tuple[str, ...]:
    """QEMU's arguments for a disk. What a machine writes is dropped, so the next start begins from the same disk."""
    text = f"file={image},if=none,id={name},format=raw,snapshot=on"
    return "-drive", text, "-device", f"virtio-blk-pci,drive={name}"


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def ssh(key: Path, port: int, user: str, control: Path | str, command: str) -> list[str]:
    """The command line that runs a shell command in an emulated machine, whose port 22 is `port` of loopback.

    control: folder of the connection, which later commands share.
    """
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "no",
        "UserKnownHostsFile": "/dev/null",
        "LogLevel": "ERROR",
        "ConnectTimeout": "20",
        "IdentitiesOnly": "yes",
        "ControlMaster": "auto",
        "ControlPath": f"{control}/%r",
        "ControlPersist": "600",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return ["ssh", "-F", "none", *words, "-i", str(key), "-p", str(port), f"{user}@127.0.0.1", command]
