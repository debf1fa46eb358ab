"""What is released: made twice it is the same, and it installs, works and goes from stock Debian.

Two clones of this repository's last commit make the release, in folders of different names. All artefacts must have the
same bytes. lintian and rpmlint check the packages. Each deb is installed by apt in a fresh root of its Debian, used as
`wheel.py` uses the wheel, and removed: nothing may be left but what was measured. The same is done with the wheel, by
pip in a virtual environment and by pipx. The rpm is unpacked and used in a root of Debian 13: no root of Fedora or
openSUSE can be made from Debian's packages.

--quick makes the wheel, the source archive and the bill twice, both with the agent of this checkout, and installs the
wheel by pip on Debian 13. That takes a minute, and one more for the root, once. The long form builds the agent anew in
each clone, and for aarch64 too; --own and --here leave that out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from frame import Options, Outcome, bench

sys.path.insert(0, str(Path(__file__).parents[1]))

from labs.release import roots
from labs.release.target import DISTRIBUTIONS, TOOLS
from partywall.agent import binary
from wheel import POLICY, QUICK, SCENARIO, timed, use

CLONE = Path(__file__).parents[1]
SMALL = tuple(
    step for step in QUICK if step.arguments[0] in {"--help", "doctor", "run", "report", "scenario"} and not step.root
)
WHEELS = "root/wheels"
MEASURED = "root/measured"


def made(folder: Path, words: Sequence[str], agents: Path | None) -> Path:
    """The artefacts that a clone in `folder` makes. words: options of the release."""
    clone = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", str(CLONE), str(clone)], check=True)
    (clone / "packaging/.tools").symlink_to(TOOLS.parent)
    words = [*words, "--agents", str(agents)] if agents else words
    env = os.environ | {"PYTHONPATH": f"{clone}/src"}
    argv = [sys.executable, "-m", "labs.release", *words]
    _, code, output = timed(argv, clone, env)
    print(output, flush=True)
    if code:
        raise SystemExit(f"the release cannot be made: it ended with {code}")
    return clone / "dist"


def digests(dist: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(dist.iterdir())}


def built_agents(folder: Path) -> Path:
    """The agent of this checkout, where `--agents` looks for it."""
    place = folder / "agents/x86_64/partywall-agent"
    place.parent.mkdir(parents=True)
    shutil.copy(binary.find(), place)
    return folder / "agents"


def complaints(package: Path) -> list[str]:
    """What lintian or rpmlint calls an error."""
    argv = (
        ["lintian", "--fail-on", "none"]
        if package.suffix == ".deb"
        else ["rpmlint", "--config", str(CLONE / "packaging/rpmlint.toml")]
    )
    done = subprocess.run([*argv, str(package)], capture_output=True, text=True, check=False)
    pattern = r"^E: (.*)$" if package.suffix == ".deb" else r"^.*: E: (.*)$"
    return re.findall(pattern, done.stdout, re.MULTILINE)


def pip(root: Path, wheel: str) -> list[str]:
    installed = _in(root, "python3", "-m", "venv", "/root/venv")
    return installed or _in(
        root, "/root/venv/bin/pip", "install", "-q", "--no-index", "-f", f"/{WHEELS}", f"/root/{wheel}"
    )


def pipx(root: Path, wheel: str) -> list[str]:
    own = f"--no-index -f /{WHEELS}"
    return _in(root, "pipx", "install", f"--pip-args={own}", f"/root/{wheel}")


def apt(root: Path, deb: str) -> list[str]:
    return _in(root, "apt-get", "install", "-y", "-qq", "--no-install-recommends", f"/root/{deb}")


def unpack(root: Path, rpm: str) -> list[str]:
    """As rpm would put its files, without its database."""
    content = subprocess.run(["rpm2cpio", str(root / "root" / rpm)], capture_output=True, check=True).stdout
    subprocess.run(["cpio", "-idmu", "--quiet"], cwd=root, input=content, check=True)
    return []


# As docs/install.md says.
CACHE = "/var/cache/partywall"
PIP_REMOVE = f"/root/venv/bin/partywall reap && rm -r /root/venv {CACHE}"
PIPX_REMOVE = f"/root/.local/bin/partywall reap && pipx uninstall partywall && rm -r {CACHE}"
Install = Callable[[Path, str], list[str]]
WAYS: dict[str, tuple[Install, str, Sequence[str]]] = {
    "deb": (apt, "partywall", ("apt-get", "remove", "-y", "-qq", "partywall")),
    "pip": (pip, "/root/venv/bin/partywall", ("sh", "-c", PIP_REMOVE)),
    "pipx": (pipx, "/root/.local/bin/partywall", ("sh", "-c", PIPX_REMOVE)),
    "rpm": (unpack, "partywall", ()),
}
"""How each artefact is installed, started and removed."""


def tried(way: str, distribution: str, artefact: Path, wheels: Path | None) -> list[str]:
    """What goes wrong with an artefact in a fresh root; empty if nothing does."""
    install, command, remove = WAYS[way]
    with roots.fresh(distribution) as root:
        shutil.copy(artefact, root / "root")
        if wheels:
            shutil.copytree(wheels, root / WHEELS)
        (root / MEASURED).mkdir()
        before = roots.files(root)
        wrong = install(root, artefact.name)
        if wrong:
            return wrong
        start = [*roots.inside(root), "sh", "-c", f'cd /{MEASURED} && exec "$@"', "-", command]
        (root / MEASURED / "small.yaml").write_text(SCENARIO)
        (root / MEASURED / "policy.yaml").write_text(POLICY)
        passed, steps = use(root / MEASURED, dict(os.environ), SMALL, start)
        wrong += [] if passed == steps else [f"{steps - passed} of {steps} commands failed"]
        if way == "deb":
            wrong += _in(root, "man", "--where", "partywall-run")
        if remove:
            wrong += _in(root, *remove)
            left = sorted(path for path in roots.files(root) - before if not _users(path))
            wrong += [f"left behind: {', '.join(left[:5])}"] if left else []
    return wrong


def _users(path: str) -> bool:
    """Whether a path is what the user measured, or of pip and pipx themselves."""
    return path.startswith((f"{MEASURED}/", "root/.local", "root/.cache", "run/"))


def _in(root: Path, *argv: str) -> list[str]:
    done = subprocess.run([*roots.inside(root), *argv], capture_output=True, text=True, check=False)
    said = (done.stderr or done.stdout).strip()[-300:]
    return [f"{' '.join(argv[:3])} ended with {done.returncode}: {said}"] if done.returncode else []


@contextlib.contextmanager
def downloaded(python: str) -> Iterator[Path]:
    """The wheels of all requirements for one Python, so that pip needs no network in the root."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        locked = ["--require-hashes", "--no-deps", "-r", "packaging/requirements.txt"]
        only = ["--only-binary=:all:", "--python-version", python, "-q", "-d", name]
        subprocess.run([sys.executable, "-m", "pip", "download", *only, *locked], cwd=CLONE, check=True)
        yield Path(name)


def installed(dist: Path, options: Options) -> dict[str, list[str]]:
    """What goes wrong with each artefact on each Debian."""
    found: dict[str, list[str]] = {}
    (wheel,) = dist.glob("*x86_64*.whl")
    for distribution in [each for each in DISTRIBUTIONS if each.kind == "deb"][-1 if options.quick else 0 :]:
        name = distribution.name
        with downloaded(distribution.python) as wheels:
            for way in ("pip",) if options.quick else ("pip", "pipx"):
                found[f"{way} on {name}"] = tried(way, name, wheel, wheels)
        for deb in dist.glob(f"*+{name}_amd64.deb"):
            found[f"deb on {name}"] = tried("deb", name, deb, None)
    for rpm in dist.glob("*.x86_64.rpm"):
        found["rpm unpacked on deb13"] = tried("rpm", "deb13", rpm, None)
    return found


def same_twice(first: Path, second: Path) -> list[str]:
    """Artefacts whose bytes differ, or which only one release has."""
    one, two = digests(first), digests(second)
    return sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))


def lacking() -> str:
    if os.geteuid() != 0:
        return "fresh roots need root"
    return "" if TOOLS.exists() else "uv and nfpm are missing; run make bench-setup"


@bench(
    plants={"clock": "the second release contains the time at which it is made", "agent": "a wheel without the agent"},
    needs=("git", "mmdebstrap", "lintian", "rpmlint", "rpm2cpio", "cpio"),
    lacking=lacking,
    unjudged="deb, rpm, pipx, and agents built twice",
    more={
        "--own": {"action": "store_true", "help": "for this machine's processor alone"},
        "--here": {"action": "store_true", "help": "the same, with the agent of this checkout"},
    },
)
def main(options: Options) -> Outcome:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as one, tempfile.TemporaryDirectory(dir="/var/tmp") as two:
        agents = built_agents(Path(one)) if options.quick or options.here else None
        words = ["--machine", "x86_64"] if agents or options.own else []
        words += ["--only"] if options.quick else []
        first, second = made(Path(one), words, agents), made(Path(two), words, agents)
        if options.plant == "clock":
            for file in second.glob("*.cdx.json"):
                file.write_text(json.dumps(json.loads(file.read_text()) | {"made": file.stat().st_mtime}))
        differing = same_twice(first, second)
        if options.plant == "agent":
            from stock import without_agent  # noqa: PLC0415

            for wheel in first.glob("*.whl"):
                without_agent(wheel)
        errors = {file.name: complaints(file) for file in (*first.glob("*.deb"), *first.glob("*.rpm"))}
        wrong = installed(first, options)
        count = len(digests(first))
    for name, faults in (errors | wrong).items():
        print(f"{name}: {'; '.join(faults) or 'good'}", flush=True)
    print(f"differ: {', '.join(differing) or 'none'}")
    bad = sum(map(bool, wrong.values()))
    severe = sum(map(len, errors.values()))
    figure = (
        f"{count - len(differing)} of {count} artefacts are the same twice, {severe} errors of lintian and rpmlint, "
        f"{len(wrong) - bad} of {len(wrong)} installed, used and removed"
    )
    return Outcome(figure, not (differing or severe or bad))


if __name__ == "__main__":
    main()
