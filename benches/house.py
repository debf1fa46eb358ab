"""Is the code in good order? How many files an addition touches, what a change can reach, and whether layers hold.

Each addition of ADDITIONS is made, as docs/contributing.md describes it, in a temporary copy of the tracked files: its
files are written, the generators run, and what was added is built and used. Files that differ afterwards are counted,
except those that a generator writes. The copy has a build directory of its own, copied from agent/target, so that only
what changed is built, and this checkout keeps its own agent. The build takes some minutes. An addition from outside is
the package of tests/outside, whose tests run too.

Lines are those of Python files. What a change in a capability can reach is counted as labs/house.py does, and shown.

--quick makes a report column, an output format and a kind of study. It counts lines, but does not judge them.
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

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from frame import Options, Outcome, bench  # noqa: E402
from labs import house  # noqa: E402

GENERATED = (
    "docs/kernels/README.md", "docs/monitors.md", "schema/agent.schema.json", "schema/load-plan.schema.json",
    "schema/scenario.schema.json", "src/partywall/agent/catalogue.json", "src/partywall/agent/counters.json",
)  # fmt: skip
"""What `make generate` writes, wholly or, of pages, in a marked part."""
AGENT = Path("src/partywall/_bin/partywall-agent")
LINES_MOST = {"src/partywall": 66_000, "src/partywall/core": 5_000, "benches": 12_500}
LAST = ""
"""The place of a text that is added at the end of a file, which may be new."""


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

    def partywall(self, *words: str, says: str = "", ends: Sequence[int] = (0,)) -> None:
        if says not in (shown := self.python("-m", "partywall", *words, ends=ends)):
            raise StepError(f"partywall {' '.join(words)} does not say {says!r}:\n{shown}")

    def tests(self, *words: str, **env: str) -> None:
        self.python("-m", "pytest", "-q", *words, **env)

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(exist_ok=True)
        (self.root / path).write_text(text, "utf-8")

    def insert(self, path: str, before: str, text: str) -> None:
        """Inserts text before the first place that reads so, or at the end."""
        whole = (self.root / path).read_text("utf-8") if (self.root / path).exists() else ""
        if before not in whole:
            raise StepError(f"{path} does not contain {before!r}")
        self.write(path, whole.replace(before, text + before, 1) if before else whole + text)

    def touched(self) -> list[str]:
        """Files that differ from the commit and that no generator writes."""
        lines = self.do("git", "status", "--porcelain", "--untracked-files=all").splitlines()
        return [line[3:] for line in lines if line[3:] not in GENERATED]


@dataclass(frozen=True)
class Addition:
    """Something that contributors add. use: builds and uses it. needs_build: else this checkout's agent is used.

    is_quick: whether the short form makes it.
    """

    name: str
    files_most: int
    use: Callable[[Copy], None]
    needs_build: bool = False
    is_quick: bool = False


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


def schemas(copy: Copy) -> None:
    copy.write("schema/scenario.schema.json", copy.python("-m", "partywall", "scenario", "schema"))
    copy.write("schema/load-plan.schema.json", copy.python("-m", "partywall", "load", "schema"))


def build_and_generate(copy: Copy) -> None:
    """What `make build` and `make generate` do, without setting up an environment."""
    target = copy.root / "agent" / "target"
    if (ROOT / "agent" / "target").is_dir():
        subprocess.run(["cp", "-a", ROOT / "agent" / "target", target], check=True)
    copy.do("cargo", "build", "--release", "--quiet", under="agent", CARGO_TARGET_DIR=str(target))
    host = next(line for line in copy.do("rustc", "-vV").splitlines() if line.startswith("host: "))[len("host: ") :]
    (copy.root / AGENT).parent.mkdir(exist_ok=True)
    shutil.copy2(target / host / "release" / "partywall-agent", copy.root / AGENT)
    agent = str(copy.root / AGENT)
    copy.write("src/partywall/agent/catalogue.json", copy.do(agent, "catalogue"))
    copy.write("src/partywall/agent/counters.json", copy.do(agent, "counters"))
    copy.write("schema/agent.schema.json", copy.do(agent, "schema"))
    schemas(copy)
    copy.tests("tests/test_catalogue.py", "-k", "index", UPDATE_DOCS="1")


def probe_with_it(copy: Copy) -> None:
    """It measures; and what is checked of every kernel holds of it."""
    build_and_generate(copy)
    copy.partywall("probe", "noop-sum", "--for", "300ms", says="ns per addition")
    copy.tests("tests/test_catalogue.py", "tests/run/document/test_schema.py")


ROW = '            "uptime" uptime() -> wire::Clock, only [], needs [];\n'
ANSWER = "    fn uptime(&self) -> Result<Clock, Fault> {\n        Ok(Clock { monotonic_ns: clock::now() })\n    }\n\n"
CALL = """\
import sys
from partywall.core.here import host_agent
with host_agent() as agent:
    sys.exit(not agent.call("uptime")["monotonic_ns"] > 0)
"""


def call_it(copy: Copy) -> None:
    """The agent answers it, and the contract's tests know it."""
    build_and_generate(copy)
    copy.python("-c", CALL)
    copy.tests("tests/agent/test_contract.py")


BACKEND = '''\
"""A sandbox that is a process of the lowest priority."""

from __future__ import annotations

import os

from partywall.agent.client import AgentClient, Sink
from partywall.sandbox.process import Process


class Niced(Process):
    """A process with a nice value of 19."""

    def start(self, sink: Sink) -> AgentClient:
        client = super().start(sink)
        os.setpriority(os.PRIO_PROCESS, client.process.pid, 19)
        return client
'''
NICED = """\
partywall: 1
name: niced
victims: {v: {probe: integer, sandbox: {backend: niced}}}
aggressors: {a: {stressor: memory-copy}}
budget: 5s
min_blocks: 8
"""


def run_in_it(copy: Copy) -> None:
    """A run with a victim in such a sandbox, and what is checked of every backend."""
    schemas(copy)
    scenario = copy.root.parent / "niced.yaml"
    scenario.write_text(NICED, "utf-8")
    copy.partywall("run", str(scenario), "--out", str(copy.root.parent / "run"), ends=(0, 1, 3))
    copy.tests("tests/test_backend.py", "tests/run/document/test_schema.py")


METER = '''\
"""A meter that always shows the watts of its name."""

from __future__ import annotations

from partywall.host import Host
from partywall.power.address import Address
from partywall.power.values import MeterFacts, Reading
from partywall.power.meters.base import Place, now_ns

SCHEMES = ("fixed",)


class Fixed:
    def __init__(self, address: Address) -> None:
        self.facts = MeterFacts(meter=address.text, origin="simulated")
        self._watts = float(address.host)

    def read(self) -> Reading:
        return Reading(meter=self.facts.meter, time_ns=now_ns(), watts=self._watts)

    def close(self) -> None: ...


def check(address: Address) -> None: ...


def make(address: Address, host: Host) -> Fixed:
    return Fixed(address)


def find(host: Host) -> list[Place]:
    return []
'''
READ = """\
from partywall.host import Host
from partywall.power.meters import make
assert make("fixed://42", Host.here()).read().watts == 42
"""


def read_it(copy: Copy) -> None:
    copy.python("-c", READ)
    copy.tests("tests/power/test_power_meters.py", "-m", "not host")


def seen_in_it(copy: Copy) -> None:
    """A report of a golden record has the column on its page, in its table, and beside another record."""
    record = str(copy.root / "tests/golden/records/watch")
    copy.partywall("report", record, "-f", "csv", "-f", "html", ends=(0, 1, 3))
    if "both ways" not in (Path(record) / "report.html").read_text():
        raise StepError("the page lacks the column")
    subprocess.run(["git", "clean", "-fdq", "tests/golden"], cwd=copy.root, check=True)


def drawn_in_it(copy: Copy) -> None:
    record = copy.root / "tests/golden/records/watch"
    copy.partywall("report", str(record), "-f", "pdf", ends=(0, 1, 3))
    if not list(record.rglob("*.pdf")):
        raise StepError("no chart was drawn as PDF")
    subprocess.run(["git", "clean", "-fdq", "tests/golden"], cwd=copy.root, check=True)


STUDY = '''\
"""Studies of coins: how often heads come up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from partywall.core.capability import Outline
from partywall.core.document.formats import validated
from partywall.errors import TrialError
from partywall.events import Doing, Emit, Left
from partywall.host import Host
from partywall.study.paper import Place
from partywall.study.document import StudyReport, StudyRequest
from partywall.core.design import rounds
from partywall.study.record import StudyDirectory
from partywall.study.kind import OnThisHost, heading, refuse_parts
from partywall.values import Frozen


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
        refuse_parts(study.name, request)
        return Outline((f"{study.tosses} tosses",), float(study.tosses))

    def check(self, study: Study, request: StudyRequest, host: Host, root: Path, *, allow_commands: bool) -> None: ...

    def measure(self, study: Study, directory: StudyDirectory, host: Host, work_root: Path, emit: Emit) -> None:
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
        tosses = (("tosses", str(len(rows))),)
        return StudyReport(
            **heading(study, directory), comparisons=(), notes=(), facts=tosses, how="Tossed.", rows=rows
        )
'''


def study_it(copy: Copy) -> None:
    """It is measured, stored, reported and queried by the commands of every study."""
    file, out = copy.root.parent / "coins.yaml", str(copy.root.parent / "study")
    file.write_text("partywall_coin_study: 1\nname: coins\ntosses: 4\n", "utf-8")
    copy.partywall("study", str(file), "--out", out)
    copy.partywall("report", out, "-f", "html", "-f", "csv")
    copy.partywall("sql", out, "SELECT count(*) AS n FROM observations", says="8")


KERNELS, POWER, STUDIES = "agent/crates/kernels/src", "src/partywall/power/meters", "src/partywall/study"
BACKENDS, FORMATS = "src/partywall/sandbox/backends.py", "src/partywall/core/document/formats.py"
BOTH = '    Column("both", "both ways", text=lambda row: shown(row["read_bps"] + row["write_bps"], "B/s")),\n'
REQUEST = '{"jsonrpc":"2.0","id":999,"method":"uptime","params":{}}\n'
EDITS: dict[str, list[tuple[str, str, str]]] = {
    "kernel": [
        (f"{KERNELS}/noop_sum.rs", LAST, KERNEL),
        (f"{KERNELS}/lib.rs", "mod null;\n", "mod noop_sum;\n"),
        (f"{KERNELS}/lib.rs", "    integer::ENTRY,\n", "    noop_sum::ENTRY,\n"),
        ("docs/kernels/cpu.md", LAST, SECTION),
    ],
    # `uptime`, answered with a clock's reading: a method without types of its own.
    "wire method": [
        ("agent/crates/wire/src/message.rs", '            "clock" clock() -> wire::Clock', ROW),
        ("agent/crates/agent/src/dispatch.rs", "    fn clock(&self) -> Result<Clock, Fault> {", ANSWER),
        ("schema/golden/requests.jsonl", LAST, REQUEST),
    ],
    "backend": [
        ("src/partywall/sandbox/niced.py", LAST, BACKEND),
        (BACKENDS, '"process", "container"', '"niced", '),
        (BACKENDS, '    "process": Backend(', '    "niced": Backend("niced:Niced", "on this host"),\n'),
    ],
    "meter": [
        (f"{POWER}/fixed.py", LAST, METER),
        (f"{POWER}/__init__.py", "hwmon, ipmi,", "fixed, "),
        (f"{POWER}/__init__.py", "rapl, hwmon,", "fixed, "),
    ],
    "report column": [("src/partywall/watch/report.py", '    Column("queued", "queued", "")', BOTH)],
    "output format": [
        (
            "src/partywall/core/report/files.py",
            '}\n"""A function that draws',
            '    "pdf": vl_convert.vegalite_to_pdf,\n',
        )
    ],
    "study kind": [
        (f"{STUDIES}/coins/__init__.py", LAST, STUDY),
        (FORMATS, '    "partywall_path_study": _STUDY', '    "partywall_coin_study": _STUDY,\n'),
        (f"{STUDIES}/__init__.py", "from partywall.study.generation", "from partywall.study.coins import Coins\n"),
        (f"{STUDIES}/__init__.py", ")\nKINDS:", "    Coins(),\n"),
    ],
    "capability of another package": [],
}
ADDITIONS = [
    Addition("kernel", 3, probe_with_it, needs_build=True),
    Addition("wire method", 3, call_it, needs_build=True),
    Addition("backend", 2, run_in_it),
    Addition("meter", 2, read_it),
    Addition("report column", 1, seen_in_it, is_quick=True),
    Addition("output format", 1, drawn_in_it, is_quick=True),
    Addition("study kind", 3, study_it, is_quick=True),
    Addition("capability of another package", 0, lambda copy: copy.tests("tests/outside")),
]


def made(addition: Addition) -> tuple[str, bool]:
    """Makes an addition in a copy: its figure, and whether it met its bar."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="partywall-house-") as folder:
        copy = copied(Path(folder) / "copy")
        try:
            for edit in EDITS[addition.name]:
                copy.insert(*edit)
            if not addition.needs_build:
                (copy.root / AGENT).parent.mkdir(exist_ok=True)
                shutil.copy2(ROOT / AGENT, copy.root / AGENT)
            addition.use(copy)
            touched = copy.touched()
        except StepError as error:
            print(error)
            return f"{addition.name}: failed", False
    print(f"{addition.name}: by hand: {', '.join(touched) or 'nothing'}")
    return f"{addition.name} {len(touched)} of {addition.files_most}", len(touched) <= addition.files_most


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
    layers = passes(str(Path(sys.executable).parent / "lint-imports"), "--no-cache")
    kinds = passes(sys.executable, "-m", "pytest", "-q", "tests/test_kinds.py", "-m", "not host")
    return f"layers {'hold' if layers else 'broken'}, kinds of record {'pass' if kinds else 'fail'}", layers and kinds


def passes(*argv: str) -> bool:
    """Whether a command in this checkout succeeds; shows its output if not."""
    env = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(argv, cwd=ROOT, env=env, text=True, capture_output=True, check=False)
    if done.returncode:
        print(done.stdout[-3000:], done.stderr[-3000:])
    return done.returncode == 0


def size() -> tuple[str, bool]:
    """Lines, judged; and what a change in a capability can reach, as a share of what it was without a folder."""
    lines = {folder: house.lines_below(ROOT / folder) for folder in LINES_MOST}
    figure = ", ".join(f"{folder} {lines[folder]:,} lines of {most:,}" for folder, most in LINES_MOST.items())
    shares = {name: lines / house.BEFORE[name] for name, (_, lines) in house.reached().items()}
    print(f"reached of before: {', '.join(f'{name} {share:.0%}' for name, share in shares.items())}")
    return figure, all(lines[folder] <= most for folder, most in LINES_MOST.items())


def joined(outcomes: Sequence[tuple[str, bool]]) -> tuple[str, bool]:
    return "; ".join(figure for figure, _ in outcomes), all(met for _, met in outcomes)


@bench(
    plants={"unlisted": "a kind of study that is in no list"},
    unjudged="size, and additions that take longer",
    parts=("order", "size", "additions"),
)
def main(options: Options) -> Outcome:
    wanted = [addition for addition in ADDITIONS if addition.is_quick or not options.quick]
    if options.plant:
        del EDITS["study kind"][1:]
    every = {"order": order, "size": size, "additions": lambda: joined([made(each) for each in wanted])}
    parts = {name: part() for name, part in every.items() if name in (options.only or every)}
    judged = [part for name, part in parts.items() if not (options.quick and name == "size")]
    return Outcome(joined(list(parts.values()))[0], joined(judged)[1], parts)


if __name__ == "__main__":
    main()
