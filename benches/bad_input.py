"""Wrong scenarios and command lines, answered as a user gets them, and both decoders fuzzed.

Every scenario of tests/scenario/bad and every command line of tests/cli/bad.toml is given to `python -m partywall` in a
process of its own; the answer must be one clear message a mistake with its place and remedy, the documented exit code,
no traceback, and nothing left or half done. The scenario decoder gets good and bad scenarios with bytes changed: a
Scenario or a UsageError must come out. The agent gets golden requests with bytes changed and random lines through its
pipe: every line must be answered once, in order, by the same agent to the end.

Bar: all inputs answered clearly, no traceback, no decoder that fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests"
GOLDEN = TESTS.parent / "schema" / "golden" / "requests.jsonl"
sys.path.insert(0, str(TESTS.parent))

from common import MUTE, arguments, conclude, spoilt_python  # noqa: E402
from partywall.agent import binary  # noqa: E402
from partywall.agent.client import start_agent  # noqa: E402
from partywall.errors import UsageError  # noqa: E402
from partywall.scenario import loads  # noqa: E402
from tests.cli import corpus  # noqa: E402

BATCH = 50
# These are wrong by the small catalogue of the tests' own, and may be right, or wrong otherwise, by the shipped one.
OTHER_CATALOGUE = ("050", "051", "052", "055", "056", "057", "058", "060", "138")


def command_lines(folder: Path, *, quick: bool) -> list[tuple[str, list[str]]]:
    """Each case with what is wrong with its answer."""
    finished = corpus.finished_run(folder / "finished")
    chosen = [c for c in corpus.cases() if not corpus.missing(c) and not (quick and c.slow)]

    def tried(numbered: tuple[int, corpus.Case]) -> tuple[str, list[str]]:
        number, case = numbered
        corpus.prepare(folder / str(number), case, finished)
        outcome = corpus.run(folder / str(number), *case.arguments, case=case)
        return case.name, corpus.complaints(case, outcome)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(tried, enumerate(chosen[::4] if quick else chosen)))


def scenarios(folder: Path, *, quick: bool) -> list[tuple[str, list[str]]]:
    """Each wrong scenario with what is wrong with its answer. Its comments say how many mistakes it has, and where."""
    (folder / "scenarios").mkdir()

    def tried(file: Path) -> tuple[str, list[str]]:
        outcome = corpus.run(folder / "scenarios", "scenario", "check", str(file))
        lines = file.read_bytes().decode("utf-8", "replace").splitlines()
        wanted = [line.removeprefix("# expect: ").split(" | ") for line in lines if line.startswith("# expect: ")]
        says = tuple(part.strip() for mistake in wanted for part in mistake[2:])
        case = corpus.Case(file.name, (), 2, says)
        return file.name, corpus.complaints(case, outcome)

    files = sorted(f for f in (TESTS / "scenario" / "bad").glob("*.yaml") if not f.name.startswith(OTHER_CATALOGUE))
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(tried, files[::6] if quick else files))


def spoilt(raw: bytes, chance: random.Random) -> bytes:
    """Bytes with a few places changed, cut, repeated or filled with what parsers stumble over."""
    changed = bytearray(raw)
    tokens = (
        b"{",
        b"}",
        b"[",
        b'"',
        b": ",
        b"null",
        b"-1",
        b"1e999",
        b"\\u0000",
        b"\xff",
        b"\x00",
        b"\t",
        b"*a",
        b"&a ",
    )
    for _ in range(chance.randint(1, 4)):
        at, size = chance.randint(0, len(changed)), chance.choice((0, 0, 1, 2, 8, 40))
        changed[at : at + size] = chance.choice((chance.choice(tokens), chance.randbytes(size), changed[:size]))
    return bytes(changed)


def fuzz_scenarios(seconds: float, chance: random.Random) -> tuple[int, list[str]]:
    """Inputs given to the scenario decoder, and what it failed on."""
    seeds = [p.read_bytes() for p in [TESTS / "scenario" / "good.yaml", *(TESTS / "scenario" / "bad").glob("*.yaml")]]
    end, count, failed = time.monotonic() + seconds, 0, []
    while time.monotonic() < end:
        raw = spoilt(chance.choice([s for s in seeds if len(s) < 20_000]), chance)
        count += 1
        try:
            loads(raw)
        except UsageError as error:
            failed += (
                [f"{raw!r}: no message"] if not all(p.message and "\n" not in str(p) for p in error.problems) else []
            )
        except Exception as error:  # noqa: BLE001 - anything else is what is looked for
            failed.append(f"{raw!r}: {error!r}")
    return count, failed


def lines(count: int, chance: random.Random) -> Iterator[bytes]:
    """Requests to feed: spoilt golden ones and random bytes, none with a line's end inside, none that is empty."""
    golden = [line for line in GOLDEN.read_bytes().splitlines() if b"command" not in line]
    while count:
        raw = (
            chance.randbytes(chance.randint(1, 200)) if chance.random() < 0.2 else spoilt(chance.choice(golden), chance)
        )
        line = raw.replace(b"\n", b" ")
        if line.strip(b" \t\r\x0c"):
            count -= 1
            yield line


def fuzz_agent(count: int, chance: random.Random) -> tuple[int, list[str]]:
    """Lines given to the agent, and what went wrong: after each batch a good request must get the next answer."""
    process = start_agent([str(binary.find()), "serve", "--die-with-parent"])
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    threading.Thread(target=process.stderr.read, daemon=True).start()
    watchdog = threading.Timer(600, process.kill)
    watchdog.start()
    sent, failed, batch = 0, [], []
    for line in lines(count, chance):
        batch.append(line)
        if len(batch) == BATCH:
            sent += len(batch)
            failed += _batch(process, batch, sent)
            batch = []
            if failed:
                break
    watchdog.cancel()
    process.stdin.close()
    if status := process.wait(20):
        failed.append(f"the agent ended with status {status}")
    return sent, failed


def _batch(process: subprocess.Popen[bytes], batch: list[bytes], number: int) -> list[str]:
    """Sends a batch line by line and a `clock` after it, and counts the answers."""
    assert process.stdin is not None
    assert process.stdout is not None
    for line in batch:
        try:
            process.stdin.write(line + b"\n")
            process.stdin.flush()
        except OSError:
            return [f"the agent died of {line!r}"]
        if not (answer := _answer(process.stdout)):
            return [f"no answer to {line!r}"]
        if (result := "result" in answer) == ("error" in answer) or (not result and not answer["error"]["message"]):
            return [f"{line!r} was answered by {answer}"]
    request: dict[str, Any] = {"jsonrpc": "2.0", "id": 10**9 + number, "method": "clock", "params": {}}
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    answer = _answer(process.stdout)
    return (
        []
        if answer.get("id") == request["id"] and "result" in answer
        else [f"out of step after {batch[-1]!r}: {answer}"]
    )


def _answer(stream: Any) -> dict[str, Any]:
    """The next response; what workloads say in between is passed over."""
    for line in stream:
        message = json.loads(line)
        if "method" not in message:
            return dict(message)
    return {}


PLANTS = {"mute": "errors that do not say what is wrong"}


def main() -> None:
    options = arguments(__doc__ or "", plants=PLANTS)
    seed = 7 if options.quick else time.time_ns()
    print(f"seed {seed}", flush=True)
    chance = random.Random(seed)
    fuzzed, failed = fuzz_scenarios(5 if options.quick else 300, chance)
    sent, refused = fuzz_agent(1_000 if options.quick else 20_000, chance)
    faulty = spoilt_python(MUTE) if options.plant else contextlib.nullcontext()
    with faulty, tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        os.chmod(name, 0o755)  # noqa: PTH101, S103 - another user enters it
        answered = [*scenarios(Path(name), quick=options.quick), *command_lines(Path(name), quick=options.quick)]
    wrong = [(name, complaints) for name, complaints in answered if complaints]
    for name, complaints in wrong:
        print(f"{name}: {'; '.join(complaints)}", flush=True)
    for problem in failed + refused:
        print(problem, flush=True)
    tracebacks = sum("Traceback" in text for _, complaints in wrong for text in complaints)
    conclude(
        "bad-input",
        f"{len(answered) - len(wrong)} of {len(answered)} wrong inputs answered clearly, {tracebacks} tracebacks; "
        f"{fuzzed} scenarios and {sent} requests fuzzed, {len(failed) + len(refused)} failures",
        met=not wrong and not failed and not refused,
    )


if __name__ == "__main__":
    main()
