"""Tries the oldest and the newest of every dependency on every Python there is, and prints one table.

`make versions`. For each Python it makes two throw-away environments below /var/tmp, installs Partywall's wheel there
with the lowest and the newest versions that pyproject.toml allows and that have wheels for this Python, and runs the
tests that need neither the host nor long. Pythons are those on the PATH, those of pyenv, and, for root with mmdebstrap,
those of Debian's suites, each in a root of its own. Roots and downloads are kept in ~/.cache/partywall-versions;
nothing is installed on the host. --write-docs puts the results into docs/hosts.md.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benches.results import written

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "hosts.md"
# Not in the clone: whatever walks the clone's files would walk whole systems.
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "partywall-versions")
PACKAGES = CACHE / "packages"
AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
UV = CACHE / "uv" / "bin" / "uv"
MINORS = (11, 12, 13, 14)
# The suites of Debian whose own Python it is. There is none for 3.12.
SUITES = {11: "bookworm", 13: "trixie", 14: "forky"}
RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}
PYTEST = ("-m", "pytest", "--tb=short", "-p", "no:cacheprovider", "-m", "not host and not slow and not long")


@dataclass(frozen=True)
class Python:
    """An interpreter. root: the folder that it must be started in by chroot; None for one of this host."""

    minor: int
    path: str
    root: Path | None = None

    def argv(self, folder: Path, command: Sequence[str | Path]) -> list[str]:
        """The command, run where this interpreter is; it sees the clone (to read) and `folder` at the same paths."""
        if self.root is None:
            return [str(part) for part in command]
        steps = "\n".join(_mounts(self.root, folder))
        inside = f"chroot {self.root} env --chdir={ROOT} {shlex.join(map(str, command))}"
        # The shell remains the namespace's first process, so it adopts orphans, and the tests do not.
        enter = f"set -e\n{steps}\n{inside}\nexit 0"
        # Mounts are gone with their namespace, however this ends.
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "sh", "-c", enter]


@dataclass(frozen=True)
class Outcome:
    """What came of one environment. why: the reason if no test ran, else empty."""

    python: str
    resolution: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    why: str = ""

    @property
    def good(self) -> bool:
        return self.passed > 0 and self.failed == 0


def main() -> None:
    """Tries them all; ends with 1 if any test failed or an environment could not be made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", type=_minor, help="only this one, for example 3.13; may repeat")
    parser.add_argument("--only", choices=RESOLUTIONS, help="only the lowest or the newest versions")
    parser.add_argument("--apt-option", action="append", default=[], help="for mmdebstrap, as its --aptopt")
    parser.add_argument("--write-docs", action="store_true", help="write the table of versions in docs/hosts.md")
    parser.add_argument("tests", nargs="*", help="arguments for pytest; all fast tests if not given")
    options = parser.parse_args()
    console = Console()
    PACKAGES.mkdir(parents=True, exist_ok=True)
    if not UV.exists():
        # Resolves to the lowest versions, which pip cannot.
        subprocess.run([sys.executable, "-m", "venv", UV.parents[1]], check=True)
        subprocess.run([UV.with_name("pip"), "install", "--quiet", "uv"], check=True)
    pythons = list(available(options.python or MINORS, options.apt_option, console))
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="partywall-versions-") as name:
        folder = Path(name)
        build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder]
        subprocess.run(build, cwd=ROOT, check=True)
        which = [options.only] if options.only else list(RESOLUTIONS)
        outcomes = [
            attempt(python, resolution, folder, options.tests, console) for python in pythons for resolution in which
        ]
    show(console, outcomes)
    if options.write_docs:
        DOCS.write_text(written(DOCS.read_text(), {"versions": f"\n{table(outcomes)}\n"}))
    sys.exit(0 if outcomes and all(outcome.good for outcome in outcomes) else 1)


def _minor(text: str) -> int:
    major, _, minor = text.partition(".")
    if major != "3" or not minor.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is no version such as 3.13")
    return int(minor)


def available(minors: Sequence[int], apt_options: Sequence[str], console: Console) -> Iterator[Python]:
    """Those of the versions that there are; what is missing is said."""
    for minor in minors:
        if python := _of_host(minor) or _of_debian(minor, apt_options, console):
            yield python
        else:
            console.print(f"Python 3.{minor}: left out: not on the PATH, not in pyenv, and no Debian suite has it here")


def _of_host(minor: int) -> Python | None:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [shutil.which(f"python3.{minor}"), *sorted(map(str, pyenv.glob(f"versions/3.{minor}.*/bin/python3")))]
    for path in candidates:
        # pyenv puts names on the PATH that only say which versions there are.
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return Python(minor, path)
    return None


def _of_debian(minor: int, apt_options: Sequence[str], console: Console) -> Python | None:
    suite = SUITES.get(minor)
    if suite is None or os.geteuid() != 0 or not shutil.which("mmdebstrap"):
        return None
    root, part = CACHE / suite, CACHE / f"{suite}.part"
    if not root.exists():
        console.print(f"Python 3.{minor}: fetching Debian {suite} …")
        shutil.rmtree(part, ignore_errors=True)
        options = [f"--aptopt={option}" for option in apt_options]
        argv = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include=python3.{minor},ca-certificates", *options]
        done = subprocess.run([*argv, suite, part], text=True, capture_output=True, check=False)
        if done.returncode:
            console.print(done.stderr.strip() or "mmdebstrap failed", style="red")
            return None
        part.rename(root)
    return Python(minor, f"/usr/bin/python3.{minor}", root)


def _mounts(root: Path, folder: Path) -> Iterator[str]:
    """Shell lines that bring into `root` what an installation and the tests need of this host."""
    yield f"mount -t proc proc {root}/proc"
    yield f"mount --rbind /dev {root}/dev"
    yield f"mount --rbind /sys {root}/sys"
    yield _bind(root, ROOT)
    yield f"mount -o remount,ro,bind {root}{ROOT}"
    yield from (_bind(root, place) for place in (UV.parents[1], PACKAGES, folder))
    # This host's resolver and authorities, since what they are is the host's business.
    yield f"cp -L /etc/resolv.conf {root}/etc/resolv.conf"
    yield f"mount --bind /etc/ssl/certs {root}/etc/ssl/certs"


def _bind(root: Path, place: Path) -> str:
    return f"mkdir -p {root}{place} && mount --bind {place} {root}{place}"


def attempt(python: Python, resolution: str, folder: Path, tests: Sequence[str], console: Console) -> Outcome:
    """Makes one environment, tests in it, and removes it."""
    name = f"3.{python.minor}"
    venv = folder / f"{name}-{resolution}"
    (wheel,) = folder.glob("*.whl")
    resolve = ("--resolution", RESOLUTIONS[resolution], "--no-build", "--extra", "dev", "-r", ROOT / "pyproject.toml")
    install = (UV, "pip", "install", "--quiet", "--python", venv / "bin" / "python")
    try:
        for command in (
            (UV, "venv", "--quiet", "--python", python.path, venv),
            (*install, *resolve),
            (*install, "--no-deps", wheel),
        ):
            _run(python, folder, command)
        console.print(f"{name} {resolution}: {_versions(python, folder, venv)}", soft_wrap=True, highlight=False)
        result = venv / "result.xml"
        argv = (venv / "bin" / "python", *PYTEST, f"--junitxml={result}", *tests)
        subprocess.run(python.argv(folder, argv), cwd=ROOT, env=_environment(folder), check=False)
        return _read(name, resolution, result)
    except NotMadeError as error:
        return Outcome(name, resolution, why=str(error))
    finally:
        shutil.rmtree(venv, ignore_errors=True)


class NotMadeError(Exception):
    """An environment could not be made; its text is what the installer said."""


def _run(python: Python, folder: Path, command: Sequence[str | Path]) -> str:
    argv = python.argv(folder, command)
    done = subprocess.run(argv, cwd=ROOT, env=_environment(folder), text=True, capture_output=True, check=False)
    if done.returncode:
        raise NotMadeError(done.stderr.strip())
    return done.stdout


def _environment(folder: Path) -> dict[str, str]:
    """Nothing of the clone's own environment, and no caches in the clone."""
    ours = ("VIRTUAL_ENV", "PYTHONPATH", "PARTYWALL_AGENT", "PYENV_VERSION")
    kept = {key: value for key, value in os.environ.items() if key not in ours}
    own = {"UV_CACHE_DIR": str(PACKAGES), "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis")}
    return kept | own | {"UV_LINK_MODE": "copy", "SSL_CERT_FILE": AUTHORITIES, "PYTHONDONTWRITEBYTECODE": "1"}


def _versions(python: Python, folder: Path, venv: Path) -> str:
    """What was installed, but for what others brought along, in one line."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    direct = {_name(line) for line in [*project["dependencies"], *project["optional-dependencies"]["dev"]]}
    installed = _run(python, folder, (UV, "pip", "freeze", "--python", venv / "bin" / "python")).splitlines()
    return ", ".join(line.replace("==", " ") for line in installed if _name(line) in direct)


def _name(requirement: str) -> str:
    """A requirement's package, as the index spells it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement)[0]).lower()


def _read(name: str, resolution: str, result: Path) -> Outcome:
    """The sums of a JUnit file."""
    if not result.exists():
        return Outcome(name, resolution, why="the tests did not start")
    suite = next(ET.parse(result).getroot().iter("testsuite"))  # noqa: S314 - our own pytest wrote it
    number = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
    failed = number["failures"] + number["errors"]
    return Outcome(name, resolution, number["tests"] - failed - number["skipped"], failed, number["skipped"])


def show(console: Console, outcomes: Sequence[Outcome]) -> None:
    """The table."""
    table = Table("Python", "dependencies", "passed", "failed", "skipped", "")
    for outcome in outcomes:
        numbers = (outcome.passed, outcome.failed, outcome.skipped)
        table.add_row(outcome.python, outcome.resolution, *map(str, numbers), outcome.why)
    console.print(table)


def table(outcomes: Sequence[Outcome]) -> str:
    """The table as Markdown, with the date."""
    lines = ["| Python | dependencies | passed | failed | skipped |", "|---|---|---|---|---|"]
    for outcome in outcomes:
        counts = "not tested | – | –" if outcome.why else f"{outcome.passed:,} | {outcome.failed} | {outcome.skipped}"
        lines.append(f"| {outcome.python} | {outcome.resolution} | {counts} |")
    return "\n".join([f"Tested {datetime.datetime.now().astimezone().date().isoformat()}.", "", *lines])


if __name__ == "__main__":
    main()
