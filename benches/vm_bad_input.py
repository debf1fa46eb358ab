"""What goes wrong with guests, as reported to the user: each case by the command line as a user meets it.

No QEMU; no kernel; a kernel that is none, that cannot be read, or that was taken away; modules that are none; a root
image that is none; memory that is not there; memory too small for the guest's own
kernel; a disk too large for the host's; a command, for which a guest holds no programs; a root of packages that do not
exist, or where nothing is there to build it with; an accelerator that does not exist; CPUs for the emulator that the
host does not have. No port is ever opened, so none can be taken;
a guest whose kernel panics is among the tests.

Bar: every case ends with its exit code and one message that names the thing and the remedy, with the end of the guest's
console where a guest was started; no traceback; nothing left.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import MUTE, PARTYWALL, processes
from frame import Options, Outcome, Plant, bench
from guests import lacking
from partywall.host import Host
from partywall.sandbox.qemu import GuestKernel, root


@dataclass(frozen=True)
class Case:
    """words: what the message must hold. spoil: changes the environment, given a scratch folder."""

    name: str
    code: int
    words: tuple[str, ...]
    sandbox: dict[str, Any] = field(default_factory=dict)
    victim: dict[str, Any] = field(default_factory=lambda: {"probe": "integer"})
    spoil: Callable[[Path], dict[str, str]] = lambda _: {}


def without_qemu(folder: Path) -> dict[str, str]:
    (folder / "bin").mkdir()
    return {"PATH": str(folder / "bin")}


def without_kernel(folder: Path) -> dict[str, str]:
    return {"PARTYWALL_CACHE": str(folder / "nothing")}


def without_mmdebstrap(folder: Path) -> dict[str, str]:
    """All the programs of the host but one, and a cache that holds the kernel alone."""
    (folder / "bin").mkdir()
    for place in os.environ["PATH"].split(":"):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            if program.name != "mmdebstrap" and not (folder / "bin" / program.name).exists():
                (folder / "bin" / program.name).symlink_to(program)
    shutil.copytree(GuestKernel.prepared().folder, folder / "cache" / "guest-kernel")
    return {"PATH": str(folder / "bin"), "PARTYWALL_CACHE": str(folder / "cache")}


def spoilt(folder: Path, *parts: str) -> dict[str, str]:
    copy = folder / "cache" / "guest-kernel"
    shutil.copytree(GuestKernel.prepared().folder, copy)
    copy.joinpath(*parts).write_bytes(b"this is nothing of the kind\n" * 100)
    return {"PARTYWALL_CACHE": str(folder / "cache")}


def without_image(folder: Path) -> dict[str, str]:
    """Neither as it was shipped nor unpacked; one of the two would do."""
    kernel = GuestKernel.prepared()
    environment = spoilt(folder, kernel.image.name)
    for image in (kernel.image, kernel.packed):
        (folder / "cache" / "guest-kernel" / image.name).unlink(missing_ok=True)
    return environment


def unreadable_image(folder: Path) -> dict[str, str]:
    """Root may read every file, but no folder as one."""
    environment = without_image(folder)
    (folder / "cache" / "guest-kernel" / GuestKernel.prepared().packed.name).mkdir()
    return environment


def spoilt_root(folder: Path) -> dict[str, str]:
    """A root image that is none, as if it had been built."""
    recipe = root.Recipe.of(("procps",), Host.here())
    built = folder / "cache" / "guest-roots" / recipe.key
    built.mkdir(parents=True)
    (built / "root.ext4").write_bytes(b"this is nothing of the kind\n" * 100_000)
    (built / "recipe.json").write_text(json.dumps({"packages": recipe.packages, "programs": ["vmstat"]}))
    shutil.copytree(GuestKernel.prepared().folder, folder / "cache" / "guest-kernel")
    return {"PARTYWALL_CACHE": str(folder / "cache")}


VMSTAT = {"command": ["vmstat", "1"], "metric": {"csv_column": 1}}
CASES = (
    Case("no QEMU", 4, ("qemu-system-x86_64 was not found", "apt-get install"), spoil=without_qemu),
    Case("no kernel", 4, ("no kernel for guests", "partywall vm prepare"), spoil=without_kernel),
    Case("kernel.json spoilt", 4, ("cannot be used", "vm prepare"), spoil=lambda f: spoilt(f, "kernel.json")),
    Case("image taken away", 4, ("is not there", "vm prepare"), spoil=without_image),
    Case("image unreadable", 4, ("cannot be used", "vm prepare"), spoil=unreadable_image),
    Case("kernel spoilt", 5, ("did not come up",), spoil=lambda f: spoilt(f, GuestKernel.prepared().image.name)),
    Case(
        "module spoilt",
        5,
        ("did not come up", "console ended with", "inserting the module"),
        spoil=lambda f: spoilt(f, "modules", "virtio.ko"),
    ),
    Case(
        "root image spoilt",
        5,
        ("did not come up", "console ended with", "root image", "rm -r"),
        {"root": ["procps"]},
        VMSTAT,
        spoil=spoilt_root,
    ),
    Case("memory beyond the host's", 4, ("of memory", "lower sandbox.memory"), {"memory": "900GiB"}),
    Case("memory too small", 2, ("sandbox.memory", "give at least"), {"memory": "32MiB"}),
    Case(
        "disk too large",
        4,
        ("guests' disks", "are needed in", "are free", "a smaller sandbox.disk.size"),
        {"disk": {"size": "900TiB"}},
        {"probe": "disk-read"},
    ),
    Case("unknown accelerator", 2, ("accel",), {"accel": "hvf"}),
    Case("emulator's CPUs that are not there", 2, ("host_cpus", "CPU 4095"), {"host_cpus": "4095"}),
    Case(
        "a command",
        2,
        ("contains only the agent and no programs", "add sandbox.root"),
        {},
        VMSTAT,
    ),
    Case(
        "a package that does not exist",
        4,
        ("has no package no-such-package", "apt-cache search"),
        {"root": ["no-such-package"]},
        VMSTAT,
    ),
    Case(
        "no mmdebstrap",
        4,
        ("mmdebstrap was not found", "apt-get install"),
        {"root": ["procps"]},
        VMSTAT,
        spoil=without_mmdebstrap,
    ),
)


def processes_about(folder: str) -> list[int]:
    """Processes that still have to do with a folder, by their command lines and working directories."""

    def is_about(process: Path) -> bool:
        command = (process / "cmdline").read_bytes().decode(errors="replace")
        return folder in command + str((process / "cwd").readlink()) and process.name != str(os.getpid())

    return [int(process.name) for process in processes(is_about)]


def wrong_with(case: Case) -> str:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        victim = case.victim | {"sandbox": {"backend": "qemu", "accel": "tcg"} | case.sandbox}
        content = {"partywall": 1, "name": "bad", "victims": {"v": victim}, "min_blocks": 8, "budget": "8s"}
        (folder / "bad.yaml").write_text(json.dumps(content))
        command = [*PARTYWALL, "run", "bad.yaml", "--out", "run", "--allow-commands"]
        state = folder / "state"
        environment = os.environ | {"PARTYWALL_STATE": str(state)} | case.spoil(folder)
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        left = [*state.glob("*/owner.json"), *processes_about(name)]
    said = " ".join((done.stdout + done.stderr).split())
    absent = [word for word in case.words if word not in said]
    if left:
        return f"left on the host: {left}"
    if done.returncode != case.code or absent or "Traceback" in said:
        return f"exit code {done.returncode} for {case.code}, not said: {absent}: {said[-600:]}"
    return ""


@bench(plants={"mute": Plant("errors that do not say what is wrong", python=MUTE)}, lacking=lacking)
def main(options: Options) -> Outcome:
    # The quick form leaves out the cases in which a guest is started and does not come up.
    cases = [case for case in CASES if not options.quick or case.code != 5]
    wrong = 0
    for case in cases:
        problem = wrong_with(case)
        print(f"{case.name}: {problem or 'reported'}", flush=True)
        wrong += bool(problem)
    return Outcome(f"{len(cases) - wrong} of {len(cases)} reported by name with a remedy", not wrong)


if __name__ == "__main__":
    main()
