"""Is the code in good order? How many files an addition touches, and whether layers hold.

Each addition of ADDITIONS is made, as docs/contributing.md describes it, in a temporary copy of the tracked files: its
files are written by a program, the generators run, and what was added is built and used. Files that differ afterwards
are counted, except those that a generator writes (GENERATED). The copy has a build directory of its own, copied from
agent/target, so that only what changed is built, and this checkout keeps its own agent. The build takes some minutes.

--quick builds nothing: it checks the layers with lint-imports, counts lines, and runs the tests that use the same
commands on a record of every kind.

Bar: an addition works after at most as many files by hand as ADDITIONS allows, 3 for a kernel; with --quick, no import
breaks the layers, and every kind of record passes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common import arguments, conclude

ROOT = Path(__file__).resolve().parents[1]
GENERATED = (
    "docs/kernels/README.md",
    "docs/monitors.md",
    "schema/agent.schema.json",
    "schema/load-plan.schema.json",
    "schema/scenario.schema.json",
    "src/partywall/agent/catalogue.json",
    "src/partywall/agent/counters.json",
)
"""What `make generate` writes, wholly or, of pages, in a marked part."""
AGENT = Path("src/partywall/_bin/partywall-agent")


class StepError(Exception):
    """A step of an addition that failed, with its output."""


@dataclass(frozen=True)
class Copy:
    """A copy of the tracked files, as one commit."""

    root: Path

    def do(self, *argv: str, under: str = ".", **env: str) -> str:
        """Runs a command in the copy, with the copy's own code; returns its output. StepError if it fails."""
        own = {"PYTHONPATH": f"{self.root / 'src'}:{self.root}", "PARTYWALL_AGENT": str(self.root / AGENT)}
        began = time.monotonic()
        done = subprocess.run(
            argv, cwd=self.root / under, env=os.environ | own | env, text=True, capture_output=True, check=False
        )
        print(f"  {' '.join(argv)[:100]}: {time.monotonic() - began:.0f} s", flush=True)
        if done.returncode:
            raise StepError(f"{' '.join(argv)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
        return done.stdout

    def python(self, *argv: str, **env: str) -> str:
        return self.do(sys.executable, *argv, **env)

    def write(self, path: str, text: str) -> None:
        (self.root / path).write_text(text, "utf-8")

    def insert(self, path: str, before: str, text: str) -> None:
        """Inserts text before the first place that reads so."""
        whole = (self.root / path).read_text("utf-8")
        if before not in whole:
            raise StepError(f"{path} does not contain {before!r}")
        self.write(path, whole.replace(before, text + before, 1))

    def touched(self) -> list[str]:
        """Files that differ from the commit and that no generator writes."""
        lines = self.do("git", "status", "--porcelain", "--untracked-files=all").splitlines()
        return [line[3:] for line in lines if line[3:] not in GENERATED]


@dataclass(frozen=True)
class Addition:
    """Something that contributors add. apply writes its files, build makes it usable, run uses it."""

    name: str
    files_most: int
    apply: Callable[[Copy], None]
    build: Callable[[Copy], None]
    run: Callable[[Copy], None]


KERNEL = """\
//! `noop-sum`: adds up numbers. Shows what a kernel takes at the least.

use std::hint::black_box;

use schemars::{schema_for, JsonSchema};
use serde::Deserialize;

use crate::{Entry, Figure, Kernel, KernelError, KernelInfo, Latency, Needs, Resource, Roles, Settle, Sink, Unit};

const NUMBERS: u32 = 65_536;

/// Takes no parameters.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {}

struct NoopSum;

impl Kernel for NoopSum {
    fn step(&mut self, _: &mut dyn Sink) -> Result<f64, KernelError> {
        black_box((0..NUMBERS).fold(0_u32, |sum, number| sum.wrapping_add(black_box(number))));
        Ok(f64::from(NUMBERS))
    }
}

pub(crate) const ENTRY: Entry = Entry {
    name: "noop-sum",
    info: || KernelInfo {
        name: "noop-sum",
        resource: Resource::Cpu,
        summary: "adds up numbers",
        doing: "summing",
        loses: None,
        unit: Unit::Operations,
        figure: Figure::PerOperation { label: "ns per addition" },
        latency: Latency::Step("65536 additions"),
        roles: Roles::Both,
        settle: Settle { rise_ns: 1_000_000, release_ns: 1_000_000 },
        needs: Needs::NOTHING,
        warnings: &[],
        params: schema_for!(Params),
    },
    build: |params, _| {
        let Params {} = serde_json::from_value(params.clone().into())?;
        Ok(Box::new(NoopSum))
    },
};
"""
SECTION = """
## `noop-sum`

Adds up numbers.

- **figure**: ns per addition, less is better; latency: 65536 additions
- **parameters**: none
- **as a probe**: integer additions
- **as a stressor**: presses on its processor
- **source**: written for this benchmark
- **settles**: on 1 ms, off 1 ms
- **limits**: measures nothing else
"""


def kernel_files(copy: Copy) -> None:
    copy.write("agent/crates/kernels/src/noop_sum.rs", KERNEL)
    copy.insert("agent/crates/kernels/src/lib.rs", "mod null;\n", "mod noop_sum;\n")
    copy.insert("agent/crates/kernels/src/lib.rs", "    integer::ENTRY,\n", "    noop_sum::ENTRY,\n")
    page = copy.root / "docs/kernels/cpu.md"
    page.write_text(page.read_text("utf-8") + SECTION, "utf-8")


def build_and_generate(copy: Copy) -> None:
    """What `make build` and `make generate` do, without setting up an environment."""
    target = copy.root / "agent" / "target"
    if (ROOT / "agent" / "target").is_dir():
        subprocess.run(["cp", "-a", ROOT / "agent" / "target", target], check=True)
    copy.do("cargo", "build", "--release", "--quiet", under="agent", CARGO_TARGET_DIR=str(target))
    host = next(line for line in copy.do("rustc", "-vV").splitlines() if line.startswith("host: ")).removeprefix(
        "host: "
    )
    (copy.root / AGENT).parent.mkdir(exist_ok=True)
    shutil.copy2(target / host / "release" / "partywall-agent", copy.root / AGENT)
    agent = str(copy.root / AGENT)
    copy.write("src/partywall/agent/catalogue.json", copy.do(agent, "catalogue"))
    copy.write("src/partywall/agent/counters.json", copy.do(agent, "counters"))
    copy.write("schema/agent.schema.json", copy.do(agent, "schema"))
    copy.write("schema/scenario.schema.json", copy.python("-m", "partywall", "scenario", "schema"))
    copy.write("schema/load-plan.schema.json", copy.python("-m", "partywall", "load", "schema"))
    copy.python("-m", "pytest", "-q", "tests/test_catalogue.py", "-k", "index", UPDATE_DOCS="1")


def probe_with_it(copy: Copy) -> None:
    """It measures; and what is checked of every kernel holds of it."""
    shown = copy.python("-m", "partywall", "probe", "noop-sum", "--for", "300ms")
    if "ns per addition" not in shown:
        raise StepError(f"the probe does not show its figure:\n{shown}")
    copy.python("-m", "pytest", "-q", "tests/test_catalogue.py", "tests/scenario/test_schema.py")


ADDITIONS = [Addition("kernel", 3, kernel_files, build_and_generate, probe_with_it)]


def made(addition: Addition) -> tuple[str, bool]:
    """Makes an addition in a copy: its figure, and whether it met its bar."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="partywall-house-") as folder:
        copy = copied(Path(folder) / "copy")
        try:
            addition.apply(copy)
            addition.build(copy)
            addition.run(copy)
            touched = copy.touched()
        except StepError as error:
            print(error)
            return f"{addition.name}: failed", False
    print(f"{addition.name}: by hand: {', '.join(touched)}")
    figure = f"{addition.name}: {len(touched)} files by hand (at most {addition.files_most})"
    return figure, len(touched) <= addition.files_most


def copied(to: Path) -> Copy:
    """The tracked files as they are now, with their times, so that what did not change is not built again."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name, follow_symlinks=False)
    copy = Copy(to)
    who = ("-c", "user.name=house", "-c", "user.email=house@localhost")
    for argv in (("init", "-q"), ("add", "-A"), (*who, "commit", "-q", "-m", "As it is")):
        copy.do("git", *argv)
    return copy


def quick() -> tuple[str, bool]:
    """What needs no build."""
    tools = Path(sys.executable).parent
    layers = passes(str(tools / "lint-imports"), "--no-cache")
    kinds = passes(sys.executable, "-m", "pytest", "-q", "tests/test_kinds.py", "-m", "not host")
    python, rust = lines("src/partywall", ".py"), lines("agent/crates", ".rs")
    said = f"layers {'hold' if layers else 'broken'}, kinds of record {'pass' if kinds else 'fail'}"
    return f"{said}, {python} lines of Python and {rust} of Rust", layers and kinds


def passes(*argv: str) -> bool:
    """Whether a command in this checkout succeeds; shows its output if not."""
    env = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(argv, cwd=ROOT, env=env, text=True, capture_output=True, check=False)
    if done.returncode:
        print(done.stdout[-3000:], done.stderr[-3000:])
    return done.returncode == 0


def lines(folder: str, suffix: str) -> int:
    return sum(len(file.read_text("utf-8").splitlines()) for file in (ROOT / folder).rglob(f"*{suffix}"))


def concluded(found: Sequence[tuple[str, bool]]) -> None:
    conclude("house", "; ".join(figure for figure, _ in found), met=all(met for _, met in found))


def main() -> None:
    options = arguments(__doc__ or "")
    concluded([quick()] if options.quick else [quick(), *map(made, ADDITIONS)])


if __name__ == "__main__":
    main()
