"""The corpus of wrong command lines, and what it takes to run one as a user would and look at everything it did.

A case of `bad.toml` is a command line in a folder of its own, which holds a good scenario (tiny.yaml), a finished run
(done) and a folder for work files (work). `write`, `cut` and `remove` spoil it first. `says` are parts of the one
message that must come, thing, place and remedy; `exit` is the documented exit code.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PARTYWALL = (sys.executable, "-m", "partywall")
NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
# Marks every process that a command starts, so that those left behind are told from other people's.
EVIDENCE = "PARTYWALL_WITNESS"
TINY = """\
partywall: 1
name: tiny
victims: {integer: {probe: integer}}
aggressors: {copy: {stressor: memory-copy, params: {block_bytes: 1MiB}}}
timing: {slot: 30ms}
min_blocks: 8
precision: 50%
budget: 3s
"""
DAMAGED = "this is a bug", "Traceback", "traceback"


@dataclass(frozen=True)
class Case:
    """One wrong command line."""

    name: str
    arguments: tuple[str, ...]
    exit: int
    says: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    write: dict[str, str] = field(default_factory=dict)
    cut: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    executable: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    stdout: str = ""
    nobody: bool = False
    needs: str = ""
    slow: bool = False
    # Refused for now: its run directory waits for --resume.
    resumable: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    exit: int
    output: str
    errors: str
    left: tuple[str, ...]
    half_done: tuple[str, ...]

    @property
    def text(self) -> str:
        """Everything said, in one line: where lines break depends on the width of the terminal."""
        return " ".join(f"{self.output} {self.errors}".split())


def cases() -> list[Case]:
    """The corpus."""
    tables = tomllib.loads((HERE / "bad.toml").read_text(encoding="utf-8"))["case"]
    return [
        Case(**{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})
        for table in tables
    ]


def missing(case: Case) -> str:
    """What the host lacks for this case; empty if nothing."""
    lacks = {
        "": "",
        "root": "" if os.geteuid() == 0 else "root",
        "no root": "" if case.nobody or os.geteuid() != 0 else "a user who is not root",
    }
    if case.nobody:
        probe = [*AS_NOBODY, sys.executable, "-c", "import partywall"]
        if os.geteuid() != 0 or subprocess.run(probe, check=False, capture_output=True, cwd="/").returncode:
            return "root, and an installation that another user can read"
    return lacks[case.needs]


def prepare(folder: Path, case: Case, finished: Path) -> None:
    """Fills the case's folder."""
    (folder / "work").mkdir(parents=True)
    (folder / "tiny.yaml").write_text(TINY)
    shutil.copytree(finished, folder / "done")
    for pattern in case.cut:
        for file in folder.glob(pattern):
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    for pattern in case.remove:
        for path in list(folder.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, text in case.write.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name in case.executable:
        (folder / name).chmod(0o755)
    if case.nobody:
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, NOBODY, NOBODY)
    for name in case.unreadable:
        (folder / name).chmod(0)


def run(folder: Path, *arguments: str, case: Case | None = None, timeout_s: float = 120) -> Outcome:
    """Runs `partywall ARGUMENTS` in `folder` to its end, and looks at what is left of it."""
    argv = [*(AS_NOBODY if case and case.nobody else ()), *PARTYWALL, *arguments]
    with Path(case.stdout).open("wb") if case and case.stdout else contextlib.nullcontext(subprocess.PIPE) as stdout:
        return ended(folder, argv, case.environment if case else {}, timeout_s, stdout)


def ended(
    folder: Path, argv: Sequence[str], more: dict[str, str], timeout_s: float = 120, stdout: Any = subprocess.PIPE
) -> Outcome:
    """Runs a command in `folder` to its end, with `more` in its environment, and looks at what is left of it."""
    environment, evidence = surroundings(folder, more)
    before = listing(folder)
    done = subprocess.run(
        argv,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
    half_done = tuple(sorted(listing(folder) - before))
    return Outcome(done.returncode, done.stdout or "", done.stderr, left(folder, evidence), half_done)


def surroundings(folder: Path, more: dict[str, str]) -> tuple[dict[str, str], str]:
    """The environment of a command in `folder`, and what marks its processes."""
    evidence = secrets.token_hex(8)
    own = {"PARTYWALL_STATE": str(folder / "state"), EVIDENCE: evidence, "COLUMNS": "100"}
    return os.environ | own | {name: value.format(folder=folder) for name, value in more.items()}, evidence


def listing(folder: Path) -> set[str]:
    """Every path in the folder but the state of runs, which is looked at apart."""
    return {
        str(path.relative_to(folder)) for path in folder.rglob("*") if folder / "state" not in [path, *path.parents]
    }


def left(folder: Path, evidence: str) -> tuple[str, ...]:
    """What a command left on the host: processes, the state of runs, and work files."""
    marked = f"{EVIDENCE}={evidence}".encode()
    result = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marked in (process / "environ").read_bytes().split(b"\0"):
                result.append(f"process {process.name} {(process / 'comm').read_text().strip()}")
    files = [*(folder / "state").glob("*"), *(folder / "work").glob("*")]
    return (*result, *(str(file) for file in files))


def complaints(case: Case, outcome: Outcome) -> list[str]:
    """What is wrong with how a case was answered."""
    result = [f"it shows {word!r}" for word in DAMAGED if word in outcome.output + outcome.errors]
    result += [f"it does not say {part!r}" for part in case.says if part not in outcome.text]
    if outcome.exit != case.exit:
        result.append(f"it ended with {outcome.exit}, not {case.exit}")
    if sum(line.startswith("partywall: ") for line in outcome.errors.splitlines()) > 1:
        result.append("it answers with more than one message")
    result += [f"it left {thing}" for thing in outcome.left]
    # What was refused must not have been begun; a trial that failed may leave its run directory, which tells why.
    if case.exit in (2, 4) and not case.resumable:
        result += [f"it began {path}" for path in outcome.half_done]
    return result


def finished_run(folder: Path) -> Path:
    """A short run, measured to its end, to spoil copies of."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "work").mkdir(exist_ok=True)
    (folder / "tiny.yaml").write_text(TINY)
    outcome = run(folder, "run", "tiny.yaml", "--out", "done", "--work-dir", "work")
    if outcome.exit not in (0, 1, 3) or outcome.left:
        raise RuntimeError(f"the run to be spoilt ended with {outcome.exit}: {outcome.text} {outcome.left}")
    for path in (folder / "done").rglob("*"):
        path.chmod(path.stat().st_mode | stat.S_IWUSR | stat.S_IRUSR)
    return folder / "done"
