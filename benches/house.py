"""Is the code in good order? How many files an addition touches, and whether layers hold.

Each addition of ADDITIONS is made, as docs/contributing.md describes it, in a temporary copy of the tracked files: its
files are written by a program, the generators run, and what was added is built and used. Files that differ afterwards
are counted, except those that a generator writes (GENERATED). The copy has a build directory of its own, copied from
agent/target, so that only what changed is built, and this checkout keeps its own agent. The build takes some minutes.

--quick builds no agent: it makes the additions that are Python alone, checks the layers with lint-imports, and runs the
tests that use the same commands on a record of every kind. It counts lines too, but does not judge them.

Lines of src/partywall are counted in two parts: LATER, the capabilities that came after the bar on lines was set (live
migration, power, consolidation, the web page, watching of disks, recording of loads, changes of loads and guards that
run, hooks in guests, memory nodes, SMT, files for commands, studies on other machines), and the rest, which the bar is
for.

Bar: every addition works after at most 3 files by hand, no import breaks the layers, every kind of record passes, and
the rest has at most LINES_MOST lines.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from frame import Options, Outcome, bench

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
LINES_MOST = 31_000
LATER = (
    "*migrat*",
    "*power*",
    "*watch*",
    "*own_files.py",
    "*consolidat*",
    "*cluster*",
    "placement/*",
    "web/*",
    "cli/serve.py",
    "kinds/journal.py",
    "*recording.py",
    "*load_record.py",
    "stats/prediction.py",
    "guard/change.py",
    "guard/measure/source.py",
    "host/nodes.py",
    "host/settings/smt.py",
    "load/availability.py",
    "load/correlation.py",
    "load/recent.py",
    "model/meter.py",
    "model/profiles.py",
    "sandbox/qemu/relay.py",
    "store/control.py",
    "study/generation/machines.py",
    "study/isolation/around.py",
    "study/isolation/elsewhere.py",
    "study/policies/*",
    "testing/libvirt.py",
)
"""Files below src/partywall of later capabilities, as patterns of their paths there."""


class StepError(Exception):
    """A step of an addition that failed, with its output."""


@dataclass(frozen=True)
class Copy:
    """A copy of the tracked files, as one commit."""

    root: Path

    def do(self, *argv: str, under: str = ".", ends: Sequence[int] = (0,), **env: str) -> str:
        """Runs a command in the copy, with the copy's own code; returns its output.

        StepError if it ends with another exit code than those of `ends`.
        """
        own = {"PYTHONPATH": f"{self.root / 'src'}:{self.root}", "PARTYWALL_AGENT": str(self.root / AGENT)}
        began = time.monotonic()
        done = subprocess.run(
            argv, cwd=self.root / under, env=os.environ | own | env, text=True, capture_output=True, check=False
        )
        print(f"  {' '.join(argv)[:100]}: {time.monotonic() - began:.0f} s", flush=True)
        if done.returncode not in ends:
            raise StepError(f"{' '.join(argv)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
        return done.stdout

    def python(self, *argv: str, ends: Sequence[int] = (0,), **env: str) -> str:
        return self.do(sys.executable, *argv, ends=ends, **env)

    def write(self, path: str, text: str) -> None:
        (self.root / path).write_text(text, "utf-8")

    def replace(self, path: str, text: str, by: str) -> None:
        """Replaces a text that is there."""
        self.insert(path, text, by)
        self.write(path, (self.root / path).read_text("utf-8").replace(by + text, by, 1))

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
    """Something that contributors add. apply writes its files, build makes it usable, run uses it.

    needs_build: whether the agent is built for it; else the copy takes this checkout's agent.
    """

    name: str
    files_most: int
    apply: Callable[[Copy], None]
    build: Callable[[Copy], None]
    run: Callable[[Copy], None]
    needs_build: bool = True


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
        also: None,
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


def method_files(copy: Copy) -> None:
    """`uptime`, answered with a clock's reading: a method without types of its own."""
    row = '            "uptime" uptime() -> wire::Clock, only [], needs [];\n'
    copy.insert("agent/crates/wire/src/message.rs", '            "clock" clock() -> wire::Clock', row)
    answer = (
        "    fn uptime(&self) -> Result<Clock, Fault> {\n        Ok(Clock { monotonic_ns: clock::now() })\n    }\n\n"
    )
    copy.insert("agent/crates/agent/src/dispatch.rs", "    fn clock(&self) -> Result<Clock, Fault> {", answer)
    requests = copy.root / "schema/golden/requests.jsonl"
    request = '{"jsonrpc":"2.0","id":999,"method":"uptime","params":{}}\n'
    requests.write_text(requests.read_text("utf-8") + request, "utf-8")


CALL = """\
import sys
from partywall.core.here import host_agent
with host_agent() as agent:
    sys.exit(not agent.call("uptime")["monotonic_ns"] > 0)
"""


def call_it(copy: Copy) -> None:
    """The agent answers it, and the contract's tests know it."""
    copy.python("-c", CALL)
    copy.python("-m", "pytest", "-q", "tests/agent/test_contract.py")


BACKEND = """\
\"\"\"A sandbox that is a process of the lowest priority.\"\"\"

from __future__ import annotations

import os

from partywall.agent.client import AgentClient, Sink
from partywall.sandbox.process import Process


class Niced(Process):
    \"\"\"A process with a nice value of 19.\"\"\"

    def start(self, sink: Sink) -> AgentClient:
        client = super().start(sink)
        os.setpriority(os.PRIO_PROCESS, client.process.pid, 19)
        return client
"""
NICED = """\
partywall: 1
name: niced
victims: {v: {probe: integer, sandbox: {backend: niced}}}
aggressors: {a: {stressor: memory-copy}}
budget: 5s
min_blocks: 8
"""


def backend_files(copy: Copy) -> None:
    copy.write("src/partywall/sandbox/niced.py", BACKEND)
    names = 'Name = Literal["process", "container", "qemu", "ssh", "libvirt"]'
    copy.replace("src/partywall/sandbox/backends.py", names, names.replace("]", ', "niced"]'))
    listed = '    "libvirt": Backend(\n'
    text = (copy.root / "src/partywall/sandbox/backends.py").read_text("utf-8")
    end = text.index("    ),\n}", text.index(listed)) + len("    ),\n")
    descriptor = '    "niced": Backend("niced:Niced", "on this host"),\n'
    copy.write("src/partywall/sandbox/backends.py", text[:end] + descriptor + text[end:])


def schema(copy: Copy) -> None:
    copy.write("schema/scenario.schema.json", copy.python("-m", "partywall", "scenario", "schema"))


def run_in_it(copy: Copy) -> None:
    """A run with a victim in such a sandbox, and what is checked of every backend."""
    scenario = copy.root.parent / "niced.yaml"
    scenario.write_text(NICED, "utf-8")
    out = copy.root.parent / "run"
    copy.python("-m", "partywall", "run", str(scenario), "--out", str(out), ends=(0, 1, 3))
    copy.python("-m", "pytest", "-q", "tests/test_backend.py", "tests/scenario/test_schema.py")


STUDY = '''\
"""Studies of coins: how often heads come up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from partywall.errors import TrialError
from partywall.events import Doing, Emit, Left
from partywall.host import Host
from partywall.model.paper import Place
from partywall.values import Frozen
from partywall.core.capability import Outline
from partywall.model.study import StudyReport, StudyRequest
from partywall.plan import rounds
from partywall.core.document.formats import validated
from partywall.store.study import StudyDirectory
from partywall.study.kind import OnThisHost, refuse_parts


class Study(Frozen):
    """The file of a study."""

    partywall_coin_study: Literal[1]
    name: str
    description: str = ""
    tosses: int


class Coins(OnThisHost):
    """Every side gets one toss a round."""

    key = "partywall_coin_study"

    def read(self, content: bytes, file: str) -> Study:
        return validated(Study, content, file)

    def outline(self, study: Study, request: StudyRequest, host: Host) -> Outline:
        del host
        refuse_parts(study.name, request)
        return Outline((f"{study.tosses} tosses",), float(study.tosses))

    def check(self, study: Study, request: StudyRequest, host: Host, root: Path, *, allow_commands: bool) -> None: ...

    def measure(self, study: Study, directory: StudyDirectory, host: Host, work_root: Path, emit: Emit) -> None:
        del host, work_root
        done = len(directory.observations())
        for number, side in rounds(["heads", "tails"], study.tosses, directory.request.seed)[done:]:
            emit(Doing(f"toss {number + 1}"))
            emit(Left(float(study.tosses - number)))
            directory.append(json.dumps({"round": number, "side": side}))

    def places(self, study: Study, request: StudyRequest, host: Host) -> dict[str, frozenset[Place]]:
        return {}

    def report(self, study: Study, directory: StudyDirectory) -> StudyReport:
        rows = tuple(directory.observations())
        if not rows:
            raise TrialError(f"{directory.path}: no toss yet")
        return StudyReport(
            run=directory.name, name=study.name, description=study.description, length=directory.request.length,
            comparisons=(), notes=(), facts=(("tosses", str(len(rows))),), how="Tossed.",
            host=directory.about.get("host", {}), rows=rows,
        )
'''


def study_files(copy: Copy) -> None:
    (copy.root / "src/partywall/study/coins").mkdir()
    copy.write("src/partywall/study/coins/__init__.py", STUDY)
    place = "src/partywall/study/__init__.py"
    copy.insert(place, "from partywall.study.generation import", "from partywall.study.coins import Coins\n")
    copy.insert(place, ")\nKINDS:", "    Coins(),\n")


def unlisted_study(copy: Copy) -> None:
    """The kind without its entry in the list."""
    (copy.root / "src/partywall/study/coins").mkdir()
    copy.write("src/partywall/study/coins/__init__.py", STUDY)


def study_it(copy: Copy) -> None:
    """It is measured, stored, reported and queried by the commands of every study."""
    file, out = copy.root.parent / "coins.yaml", copy.root.parent / "study"
    file.write_text("partywall_coin_study: 1\nname: coins\ntosses: 4\n", "utf-8")
    copy.python("-m", "partywall", "study", str(file), "--out", str(out))
    copy.python("-m", "partywall", "report", str(out), "-f", "html", "-f", "csv")
    shown = copy.python("-m", "partywall", "sql", str(out), "SELECT count(*) AS n FROM observations")
    if "8" not in shown:
        raise StepError(f"the study has not 8 observations:\n{shown}")


def nothing(copy: Copy) -> None:
    """It is Python, and needs no build."""
    del copy


ADDITIONS = [
    Addition("kernel", 3, kernel_files, build_and_generate, probe_with_it),
    Addition("wire method", 3, method_files, build_and_generate, call_it),
    Addition("backend", 3, backend_files, schema, run_in_it, needs_build=False),
    Addition("study kind", 3, study_files, nothing, study_it, needs_build=False),
]


UNLISTED = {"study kind": unlisted_study}


def made(addition: Addition) -> tuple[str, bool]:
    """Makes an addition in a copy: its figure, and whether it met its bar."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="partywall-house-") as folder:
        copy = copied(Path(folder) / "copy")
        try:
            addition.apply(copy)
            if not addition.needs_build:
                (copy.root / AGENT).parent.mkdir(exist_ok=True)
                shutil.copy2(ROOT / AGENT, copy.root / AGENT)
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


def order() -> tuple[str, bool]:
    """The layers, and the same commands on every kind of record."""
    tools = Path(sys.executable).parent
    layers = passes(str(tools / "lint-imports"), "--no-cache")
    kinds = passes(sys.executable, "-m", "pytest", "-q", "tests/test_kinds.py", "-m", "not host")
    return f"layers {'hold' if layers else 'broken'}, kinds of record {'pass' if kinds else 'fail'}", layers and kinds


def size() -> tuple[str, bool]:
    rest, later = lines_of_python()
    figure = f"{rest} lines of Python (at most {LINES_MOST}) and {later} of later capabilities"
    return f"{figure}, {lines('agent/crates', '.rs')} lines of Rust", rest <= LINES_MOST


def passes(*argv: str) -> bool:
    """Whether a command in this checkout succeeds; shows its output if not."""
    env = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(argv, cwd=ROOT, env=env, text=True, capture_output=True, check=False)
    if done.returncode:
        print(done.stdout[-3000:], done.stderr[-3000:])
    return done.returncode == 0


def lines(folder: str, suffix: str) -> int:
    return sum(len(file.read_text("utf-8").splitlines()) for file in (ROOT / folder).rglob(f"*{suffix}"))


def lines_of_python() -> tuple[int, int]:
    """Lines of src/partywall: without the later capabilities, and of these."""
    root, rest, later = ROOT / "src" / "partywall", 0, 0
    for file in root.rglob("*.py"):
        count = len(file.read_text("utf-8").splitlines())
        if any(fnmatch.fnmatch(str(file.relative_to(root)), pattern) for pattern in LATER):
            later += count
        else:
            rest += count
    return rest, later


def joined(results: Sequence[tuple[str, bool]]) -> tuple[str, bool]:
    return "; ".join(figure for figure, _ in results), all(met for _, met in results)


@bench(plants={"unlisted": "a kind of study that is in no list"}, unjudged="size, and additions that need a build")
def main(options: Options) -> Outcome:
    wanted = [addition for addition in ADDITIONS if not (options.quick and addition.needs_build)]
    if options.plant:
        wanted = [replace(addition, apply=UNLISTED.get(addition.name, addition.apply)) for addition in wanted]
    parts = {"order": order(), "size": size(), "additions": joined([made(addition) for addition in wanted])}
    figure, _ = joined(list(parts.values()))
    judged = [part for name, part in parts.items() if not (options.quick and name == "size")]
    return Outcome(figure, joined(judged)[1], parts)


if __name__ == "__main__":
    main()
