"""Makes everything that is released: `make release`. The same commit gives the same bytes, whenever and wherever.

Each stage writes below build/ or dist/, and touches nothing else. What the stages share is a `Release`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from labs.release import agents, bill, packages, wheels
from labs.release.target import CLONE, DISTRIBUTIONS, MACHINES, Release
from partywall import __version__
from partywall.errors import PartywallError, Problem, ProblemsError, TrialError


def main() -> int:
    options = _options()
    began = time.monotonic()
    try:
        release = Release(__version__, epoch_s(CLONE), options.build.resolve(), options.dist.resolve())
        check(__version__, CLONE)
        make(release, options)
    except PartywallError as error:
        print(f"release: {error}", file=sys.stderr)
        return int(error.exit)
    for file in sorted(release.dist.iterdir()):
        print(f"{file.stat().st_size / 1e6:8.1f} MB  {file.name}")
    print(f"release {__version__} took {time.monotonic() - began:.0f} s; checksums are in {release.dist}/SHA256SUMS")
    return 0


def make(release: Release, options: argparse.Namespace) -> None:
    for folder in (release.build, release.dist):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    wheels.source(release)
    for machine in options.machine or MACHINES:
        agent = agents.built(machine, release, options.agents)
        wheel = wheels.wheel(release, agent)
        for distribution in DISTRIBUTIONS:
            if options.only is None or distribution.name in options.only:
                packages.package(release, distribution, machine, wheel)
    bill.write(release)
    wheels.scripts(release)
    wheels.checksums(release)


def check(version: str, clone: Path) -> None:
    """ProblemsError if a place states another version than `partywall.__version__`."""
    places = {
        "agent/Cargo.toml": tomllib.loads((clone / "agent/Cargo.toml").read_text())["workspace"]["package"]["version"],
        "CHANGELOG.md": next(iter(re.findall(r"^## (\d\S*)", (clone / "CHANGELOG.md").read_text(), re.MULTILINE)), ""),
    }
    wrong = [
        Problem(
            f"states version {other or 'none'}, but src/partywall/__init__.py states {version}", "change one", place
        )
        for place, other in places.items()
        if other != version
    ]
    if wrong:
        raise ProblemsError(*wrong)


def epoch_s(clone: Path) -> int:
    """When the commit was made, in seconds since 1970: the only time that artefacts contain."""
    argv = ["git", "-C", str(clone), "log", "-1", "--format=%ct"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TrialError(f"a release needs a commit: {done.stderr.strip()}")
    return int(done.stdout)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m labs.release", description=__doc__)
    parser.add_argument("--dist", type=Path, default=CLONE / "dist", help="folder of the artefacts; emptied first")
    parser.add_argument("--build", type=Path, default=CLONE / "build", help="folder to work in; emptied first")
    parser.add_argument("--machine", action="append", choices=MACHINES, help="may be given again; default: all")
    names = [each.name for each in DISTRIBUTIONS]
    parser.add_argument("--only", nargs="*", choices=names, help="packages for these alone; default: all")
    built = "folder with MACHINE/partywall-agent, built before; default: build them"
    parser.add_argument("--agents", type=Path, help=built)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
