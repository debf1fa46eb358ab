"""Results of benchmarks: recorded on request, by several writers at once, and shown by the generated documents."""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from benches import planted, results
from benches.results import Claim, Machine, Result

MACHINE = Machine(cpu="x", cpus=2, kernel="6.18.1-1")
CLAIM = Claim(bench="one", claim="it holds", bar="always")
BENCHES = results.ROOT / "benches"


def result(figure: str, date: str = "2026-01-01", **more: object) -> Result:
    content = {"bench": "one", "figure": figure, "met": True, "date": date, "machine": MACHINE} | more
    return Result.model_validate(content)


def test_the_documents_are_generated_from_results():
    """UPDATE_DOCS=1 writes them anew."""
    for page, fresh in results.pages():
        if os.environ.get("UPDATE_DOCS"):
            page.write_text(fresh, "utf-8")
        elif page.read_text("utf-8") != fresh:
            pytest.fail(f"{page} does not fit benches/results.jsonl and claims.yaml; run make generate")


def test_every_benchmark_has_a_claim_and_every_claim_a_benchmark():
    files = {file.stem for file in BENCHES.glob("*.py") if re.search(r"^@bench\(", file.read_text(), re.MULTILINE)}
    assert files == {claim.bench for rows in results.claims().values() for claim in rows}


def test_a_commit_is_dirty_if_sources_differ_from_it_results_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    who = ("-c", "user.name=one", "-c", "user.email=one@localhost")
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "RESULTS", tmp_path / "benches" / "results.jsonl")
    for file in ("agent/a.rs", "src/a.py", "benches/a.py", "benches/results.jsonl"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("1")
    for argv in (("init", "-q"), ("add", "-A"), (*who, "commit", "-q", "-m", "One")):
        subprocess.run(["git", *argv], cwd=tmp_path, check=True)
    results.RESULTS.write_text("2")
    assert re.fullmatch("[0-9a-f]+", results.commit())
    (tmp_path / "src" / "a.py").write_text("2")
    assert results.commit().endswith("-dirty")


def test_every_benchmark_plants_a_fault():
    for claim in {claim.bench for rows in results.claims().values() for claim in rows}:
        tree = ast.parse((BENCHES / f"{claim}.py").read_text("utf-8"))
        decorators = [each for node in tree.body if isinstance(node, ast.FunctionDef) for each in node.decorator_list]
        (call,) = [each for each in decorators if isinstance(each, ast.Call) and ast.unparse(each.func) == "bench"]
        assert "plants" in {word.arg for word in call.keywords}, claim


def test_a_thread_reads_while_a_block_runs_and_its_error_ends_the_block(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHES))
    common = importlib.import_module("common")
    numbers, third = itertools.count(1), threading.Event()

    def read() -> int | None:
        number = next(numbers)
        if number == 3:
            third.set()
        return None if number == 2 else number

    with common.read_meanwhile(read, 0.001) as readings:
        assert third.wait(10)
    assert readings[:2] == [1, 3]
    assert next(numbers) == readings[-1] + 1, "it has ended with the block"

    def fail() -> None:
        raise OSError("no counters")

    with pytest.raises(OSError, match="no counters"), common.read_meanwhile(fail, 0.001):
        pass


def test_a_benchmark_in_parts_continues_where_its_folder_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHES))
    frame = importlib.import_module("frame")
    now_s, measured = [0.0], list[str]()
    monkeypatch.setattr(frame, "time", SimpleNamespace(monotonic=lambda: now_s[0]))

    def part(name: str) -> dict[str, str]:
        measured.append(name)
        now_s[0] += 240
        return {"of": name}

    parts = {name: functools.partial(part, name) for name in ("one", "two", "three")}
    options = argparse.Namespace(folder=tmp_path / "kept", minutes=9.0)
    with pytest.raises(SystemExit) as ended:
        frame.in_parts(parts, options)
    assert ended.value.code == frame.UNFINISHED
    assert measured == ["one", "two"], "a third would end after 12 minutes"
    assert frame.in_parts(parts, options) == {name: {"of": name} for name in parts}
    assert measured == ["one", "two", "three"]
    assert frame.in_parts(parts, argparse.Namespace(folder=None, minutes=0)) == {name: {"of": name} for name in parts}


def test_a_short_form_is_honest_if_it_passes_and_fails_with_each_fault(monkeypatch: pytest.MonkeyPatch):
    codes = {(): 0, ("--plant", "lag"): 1, ("--plant", "deaf"): 0}
    monkeypatch.setattr(planted, "run", lambda _, *options, wanted: codes[options] == wanted)
    monkeypatch.setattr(planted, "plants", lambda _: ["lag"])
    assert planted.honest("one", only_planted=False)
    monkeypatch.setattr(planted, "plants", lambda _: ["lag", "deaf"])
    assert not planted.honest("one", only_planted=False)
    monkeypatch.setattr(planted, "plants", lambda _: [])
    assert not planted.honest("one", only_planted=True)


def test_the_short_form_of_fidelity_judges_what_few_pairs_can_show(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(BENCHES)
    common, fidelity = importlib.import_module("common"), importlib.import_module("fidelity")
    wide, off = common.Ratio([0.94, 0.95, 0.96, 0.98, 1.01]), common.Ratio([0.47, 0.5, 0.5, 0.5, 0.53])
    assert fidelity.Compared("copy", wide, None, quick=True).met
    assert not fidelity.Compared("copy", wide, None).met
    assert not fidelity.Compared("copy", off, None, quick=True).met


def test_a_reaction_by_period_is_judged_by_its_own_period_and_leaves_out_stalled_pairs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHES))
    bench = importlib.import_module("guard_reaction")
    pairs = [bench.Steps(150_000_000, 190_000_000, False, [])] * 4
    stalled = bench.Steps(None, 900_000_000, True, [])
    assert bench.reaction(100, [*pairs, stalled]).met
    assert str(bench.reaction(100, pairs)) == "100 ms: 170 ms (150 to 190), at most 190, 8 of 8 steps"
    assert not bench.reaction(50, pairs).met, "over two periods"
    assert not bench.reaction(100, [*pairs, stalled, stalled]).met, "too many pairs were left out"
    assert not bench.reaction(100, [*pairs, bench.Steps(None, 1, False, [])]).met, "a step never settled"
    assert not bench.reaction(100, []).met, "nothing was measured"


@pytest.mark.long
@pytest.mark.parametrize(
    ("ends", "wanted", "is_as_wanted"),
    [("figure", 0, True), ("figure", 1, False), ("crash", 1, False), ("no host for it", 1, False)],
)
def test_a_crash_does_not_count_as_a_missed_bar(tmp_path: Path, ends: str, wanted: int, is_as_wanted: bool):
    bench = tmp_path / "one.py"
    code = {
        "figure": "print('one: 5 % [bar met]')",
        "crash": "raise ValueError",
        "no host for it": "print('one: not measured: no root [BAR NOT MET]'); raise SystemExit(1)",
    }
    bench.write_text(code[ends])
    assert planted.run(str(bench), wanted=wanted) is is_as_wanted


SHORT = """
import sys
sys.path.insert(0, {benches!r})
from frame import NotMeasured, Outcome, bench
def missing():
    return {lacking!r}
@bench(plants={{"none": "no files"}}, unjudged="size", needs={needs!r}, lacking=missing)
def main(options):
    if {raises!r}:
        raise NotMeasured({raises!r})
    return Outcome("5 files", not options.plant)
main()
"""


def said(
    folder: Path, *options: str, needs: tuple[str, ...] = (), lacking: str = "", raises: str = ""
) -> tuple[int, str]:
    """Exit code and last line of a benchmark whose short form leaves a bar unjudged."""
    bench = folder / "short.py"
    bench.write_text(SHORT.format(benches=str(BENCHES), needs=needs, lacking=lacking, raises=raises))
    done = subprocess.run([sys.executable, str(bench), *options], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()[-1]


@pytest.mark.long
def test_a_short_form_names_the_bars_that_it_leaves_unjudged_on_its_last_line(tmp_path: Path):
    assert said(tmp_path, "--quick") == (0, "short: 5 files; not judged: size [bar met]")
    assert said(tmp_path) == (0, "short: 5 files [bar met]")
    assert said(tmp_path, "--plant") == (1, "short: 5 files [BAR NOT MET]")


@pytest.mark.long
def test_a_benchmark_without_a_program_that_it_needs_has_not_measured(tmp_path: Path):
    missing = "short: not measured: it needs no-such-program; run make bench-setup [BAR NOT MET]"
    assert said(tmp_path, "--quick", needs=("sh", "no-such-program")) == (1, missing)
    assert said(tmp_path, needs=("sh",))[0] == 0
    assert said(tmp_path, lacking="no KVM") == said(tmp_path, raises="no KVM")
    assert said(tmp_path, lacking="no KVM") == (1, "short: not measured: no KVM [BAR NOT MET]")


FAULTY = """
import os, subprocess, sys
sys.path.insert(0, {benches!r})
from contextlib import contextmanager
from frame import Outcome, Plant, bench
@contextmanager
def around():
    os.environ["FAULT"] = "around"
    yield
    print("over")
@bench(plants={{"code": Plant("of Python", python="print('spoilt')"), "around": Plant("of it all", around=around)}})
def main(options):
    child = subprocess.run([sys.executable, "-c", "print('fine')"], capture_output=True, text=True)
    words = [options.plant or "none", *child.stdout.split(), os.environ.get("FAULT", "")]
    return Outcome(" ".join(filter(None, words)), True)
main()
"""


@pytest.mark.long
def test_a_planted_fault_is_there_while_something_is_measured_and_ends_before_the_last_line(tmp_path: Path):
    bench = tmp_path / "faulty.py"
    bench.write_text(FAULTY.format(benches=str(BENCHES)))

    def lines(*options: str) -> list[str]:
        done = subprocess.run([sys.executable, str(bench), *options], capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    assert lines() == ["faulty: none fine [bar met]"]
    assert lines("--plant") == ["faulty: code spoilt fine [bar met]"]
    assert lines("--plant", "around") == ["over", "faulty: around fine around [bar met]"]


def test_every_result_is_of_a_listed_claim():
    listed = {claim.bench for rows in results.claims().values() for claim in rows}
    assert {each.bench for each in results.recorded()} <= listed


def test_a_row_shows_the_newest_long_form_else_the_newest_short_form():
    short = [result("b", "2026-01-02", arguments=["--quick"]), result("c", "2026-01-03", arguments=["--quick"])]
    assert results.of([*short, result("a")], CLAIM).figure == "a"
    assert results.of(short, CLAIM).figure == "c"
    assert "yes, short form" in results.table([CLAIM], short)


def test_a_planted_fault_and_a_part_by_itself_never_fill_a_row():
    planted = result("a", arguments=["--quick", "--plant"], plant="lag", met=False)
    assert results.of([planted, result("b", arguments=["--only", "cpu"])], CLAIM) is None
    assert "not recorded" in results.table([CLAIM], [planted])


def test_a_result_of_a_loaded_host_and_of_emulated_guests_says_so():
    emulated = result("a", load=2.5, machine=MACHINE.model_copy(update={"kvm": False}))
    assert results.table([CLAIM], [emulated]).endswith("| a | 2026-01-01 | A (E) | yes, loaded host |")


def test_machines_of_one_kind_share_a_letter():
    outcome = [result("a"), result("b", machine=MACHINE.model_copy(update={"kernel": "6.18.44"})), result("c")]
    assert list(results.lettered(outcome).values()) == ["A"]
    other = result("d", machine=MACHINE.model_copy(update={"cpus": 64}))
    assert list(results.lettered([*outcome, other]).values()) == ["A", "B"]


def test_short_forms_show_time_and_planted_faults():
    outcome = [
        result("a", arguments=["--quick"], seconds=31.4, load=0.2),
        result("b", arguments=["--quick", "--plant"], plant="lag", met=False),
        result("c", arguments=["--quick", "--plant", "deaf"], plant="deaf", met=True),
    ]
    row = results.short_forms(["one"], outcome).splitlines()[-1]
    assert row == "| `one.py` | 31 | 0.2 | yes | lag, deaf | yes, **no** |"
    busy = result("d", arguments=["--quick"], seconds=90, load=12, met=False)
    assert "| 90 | 12.0 | **no**, loaded host |" in results.short_forms(["one"], [*outcome, busy])
    unsteady = result("e", arguments=["--quick"], seconds=30, load=0.1, met=False, spread={"CPU": 0.02, "memory": 0.4})
    assert "| **no**, speed of its memory changes |" in results.short_forms(["one"], [*outcome, unsteady])
    assert unsteady.model_copy(update={"met": True}).verdict == "yes, short form"


def test_a_long_figure_is_cut_between_its_parts():
    shown = results.cut("; ".join(["0.97 to 1.03 | x"] * 20))
    assert len(shown) <= 140
    assert shown.endswith("x …")
    assert "|" not in shown


def test_several_writers_append_whole_lines(tmp_path: Path):
    file = tmp_path / "results.jsonl"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: results.append([result(str(number) * 5000)] * 2, file), range(40)))
    assert len(results.recorded(file)) == 80


@pytest.mark.long
@pytest.mark.parametrize("options", [[], ["--record"], ["--record", "--plant"]])
def test_a_benchmark_records_only_on_request(tmp_path: Path, options: list[str]):
    bench = tmp_path / "one.py"
    bench.write_text(
        "from pathlib import Path\n"
        "import results\n"
        "from frame import Outcome, bench\n"
        f"results.append.__defaults__ = (Path({str(tmp_path / 'results.jsonl')!r}),)\n"
        "@bench(plants={'lag': 'later by 1 s'})\n"
        "def main(options):\n"
        "    return Outcome('5 %', not options.plant, {'half': ('2 %', True)})\n"
        "main()\n"
    )
    argv = [sys.executable, str(bench), "--quick", *options]
    ended = subprocess.run(
        argv, check=False, env=os.environ | {"PYTHONPATH": str(BENCHES)}, capture_output=True, text=True
    )
    assert "one: 5 % [" in ended.stdout, ended.stderr
    assert ended.returncode == ("--plant" in options)
    if not options:
        assert not (tmp_path / "results.jsonl").exists()
        return
    whole, half = results.recorded(tmp_path / "results.jsonl")
    assert (whole.figure, whole.met, half.part, half.figure) == ("5 %", not ended.returncode, "half", "2 %")
    assert whole.plant == ("lag" if "--plant" in options else "")
    assert whole.form == ("other" if "--plant" in options else "short")
    assert whole.seconds is not None
    assert whole.load is not None
    assert whole.machine.cpus == os.cpu_count()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_benchmark_that_is_ended_cleans_up_once(tmp_path: Path, number: signal.Signals):
    bench, kept = tmp_path / "one.py", tmp_path / "kept"
    bench.write_text(
        "import sys, time\n"
        "from pathlib import Path\n"
        "from frame import bench\n"
        "@bench(plants={'none': ''})\n"
        "def main(options):\n"
        "    try:\n"
        "        print('begun', flush=True)\n"
        "        time.sleep(600)\n"
        "    finally:\n"
        "        print('cleaning', flush=True)\n"
        "        sys.stdin.readline()\n"
        f"        Path({str(kept)!r}).touch()\n"
        "main()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    env = os.environ | {"PYTHONPATH": str(BENCHES)}
    # Under nohup, these tests and what they start ignore SIGHUP.
    argv = ["env", "--default-signal=HUP", sys.executable, str(bench)]
    with subprocess.Popen(argv, text=True, env=env, **pipes) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "begun\n"
        running.send_signal(number)
        assert running.stdout.readline() == "cleaning\n"
        running.send_signal(number)
        _, errors = running.communicate("\n", timeout=100)
    assert (running.returncode, errors, kept.exists()) == (128 + number, "", True)


@pytest.mark.host
@pytest.mark.long
@pytest.mark.usefixtures("guarded_lab")
def test_a_benchmark_that_is_ended_leaves_no_namespace():
    argv = [sys.executable, str(BENCHES / "guard_first_second.py"), "--quick"]

    def spaces() -> list[Path]:
        return list(Path("/run/netns").glob(f"pw{running.pid}-*"))

    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        while running.poll() is None and not spaces():
            pass
        running.terminate()
        said, _ = running.communicate(timeout=200)
    assert (running.returncode, spaces()) == (128 + signal.SIGTERM, []), said


@pytest.mark.parametrize(
    ("on_signal", "within_s", "code"), [("sys.exit('cleaned up')", 100, 1), ("None", 0.01, -signal.SIGKILL)]
)
def test_a_benchmark_that_takes_too_long_may_clean_up_before_it_is_killed(
    monkeypatch: pytest.MonkeyPatch, on_signal: str, within_s: float, code: int
):
    text = (
        "import signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: {on_signal})\n"
        "print('begun', flush=True)\ntime.sleep(600)\n"
    )
    monkeypatch.setattr(planted, "CLEAN_UP_S", within_s)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen([sys.executable, "-c", text], text=True, start_new_session=True, **pipes) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "begun\n"
        assert planted._ended(running) == ("cleaned up\n" if code == 1 else "")
    assert running.returncode == code


@pytest.mark.long
def test_the_benchmark_of_hostile_peers_expects_what_the_two_halves_say(monkeypatch: pytest.MonkeyPatch):
    """Of cases that are over at once."""
    monkeypatch.syspath_prepend(str(BENCHES))
    bench = importlib.import_module("hostile_agent")
    at_once = {"nested arrays", "two answers", "an answer to nothing", "a refusal of nothing", "no message", "the end"}
    cases = [case for case in bench.AGENTS if case.name in at_once | {"random bytes", "half a line, then the end"}]
    outcomes = [*map(bench.controller_case, cases), *bench.refusals()]
    assert len(cases) == len(at_once) + 2
    assert not [f"{outcome.name}: {outcome.wrong}" for outcome in outcomes if outcome.wrong]
