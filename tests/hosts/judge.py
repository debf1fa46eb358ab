"""Recorded hosts, given to everything that reads a host, and what is wrong with the answers.

A host is a tree of files and what is expected of it: NAME.tree and NAME.toml in the folder `trees`. A complaint is one
line; a host without complaints is as it should be. An error that users can meet is no complaint if it names what is
wrong and what would do.
"""

from __future__ import annotations

import tempfile
import tomllib
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from partywall import study
from partywall.cli.app import app
from partywall.errors import CapabilityError, Exit, UsageError
from partywall.host import Host
from partywall.run import check
from partywall.sandbox import cgroups
from partywall.testing import Tree, read, recorded
from tests.hosts import topology

TREES = Path(__file__).parent / "trees"
ORDINARY_USER = 1000


@dataclass(frozen=True)
class Recorded:
    """A host that is judged."""

    name: str
    tree: Tree
    expected: dict[str, Any]


def names() -> list[str]:
    return sorted(path.stem for path in TREES.glob("*.tree"))


def load(name: str) -> Recorded:
    expected = tomllib.loads((TREES / f"{name}.toml").read_text(encoding="utf-8"))
    return Recorded(name, read((TREES / f"{name}.tree").read_text(encoding="utf-8")), expected)


@contextmanager
def laid_out(tree: Tree) -> Iterator[Path]:
    """A folder that holds the tree's files."""
    with tempfile.TemporaryDirectory(prefix="partywall-host-") as folder:
        tree.lay_out(Path(folder))
        yield Path(folder)


def judge(host: Recorded) -> list[str]:
    """What is wrong with the answers about a host, for root and for an ordinary user."""
    result: list[str] = []
    with laid_out(host.tree) as root:
        for euid in (0, ORDINARY_USER):
            try:
                this = recorded(root, host.expected["programs"], euid=euid)
            except Exception:  # noqa: BLE001 - that is what is looked for
                return [f"facts: {_last_line()}"]
            result += [*counts(this, host.expected), *commands(this, root, host.expected)]
    return [f"{host.name}: {each}" for each in dict.fromkeys(result)]


# Counts


def counts(host: Host, expected: dict[str, Any]) -> Iterator[str]:
    """Facts that are not as they are expected. Of two lists only what differs is told."""
    shape = topology.expected(expected["topology"])
    wanted = shape | expected["cgroup"] | expected["memory"] | {"missing": expected["missing"]}
    answers = _reported(host, expected["topology"]["last_level"])
    for key, value in wanted.items():
        if answers[key] != value:
            result, other = _different(answers[key], value)
            yield f"{key} is {result!r}, expected {other!r}"
    if unknown := set(answers) - set(wanted) - {"limit"}:
        yield f"nothing is expected of {', '.join(sorted(unknown))}"
    if "limit" not in wanted and answers["limit"] is not None:
        yield f"limit is {answers['limit']!r}, expected none"


def _different(result: Any, expected: Any) -> tuple[Any, Any]:
    """What each of two lists has alone; other values as they are."""
    if not isinstance(result, list) or not isinstance(expected, list):
        return result, expected
    alone = [each for each in result if each not in expected], [each for each in expected if each not in result]
    return alone if any(alone) else (result, expected)


def _reported(host: Host, level: int) -> dict[str, Any]:
    memory, mounted = host.facts["memory"], host.facts["cgroup"]
    limit = memory["limit"]
    return topology.result(host, level) | {
        "mode": mounted["mode"] or "none",
        "controllers": sorted({*mounted["v1"], *_controllers(host)}),
        "total_bytes": memory["total_bytes"],
        "usable_bytes": host.usable_memory,
        "limit": None if limit is None else limit["folder"],
        "missing": sorted({missing["what"] for missing in host.facts["missing"]} - {"eBPF programs"}),
    }


def _controllers(host: Host) -> list[str]:
    """Of version 2, where both halves must agree whether it limits."""
    offered = host.facts["cgroup"]["v2_controllers"]
    both = cgroups.read(host.root)
    return offered if both.is_v2 and both.unified_controllers == set(offered) else []


# Commands


def commands(host: Host, work: Path, expected: dict[str, Any]) -> Iterator[str]:
    """What is wrong with what the command line says of a host. work: a folder for work files.

    Scenarios are checked and studies outlined for root alone: what an ordinary user may do is seen by a plan.
    """
    reported = [*expected["missing"], *(expected.get("told_user", ()) if host.euid else ())]
    yield from wrong("doctor", ask(host, "doctor"), [f"{len(host.cpus)} allowed", *reported])
    plannable = expected["plannable" if host.euid == 0 else "plannable_as_user"]
    for name in check.names():
        outcome = ask(host, "run", name, "--dry-run", "--work-dir", str(work))
        yield from wrong(f"run {name} --dry-run", outcome)
        if (outcome.exception is None) != (name in plannable):
            yield f"{name} can{'not' if name in plannable else ''} be planned for user {host.euid}: {outcome.exception}"
    if host.euid != 0:
        return
    for name in check.names():
        yield from wrong(f"scenario check {name}", ask(host, "scenario", "check", name))
    for name in study.names():
        yield from wrong(f"study {name} --dry-run", ask(host, "study", name, "--dry-run"))


def ask(host: Host, *arguments: str) -> Result:
    """What the command line does that is given this host in the place of the one it runs on."""
    return CliRunner().invoke(app, list(arguments), obj=lambda: host)


def wrong(said: str, outcome: Result, reported: Sequence[str] = ()) -> Iterator[str]:
    """What is wrong with one answer: a traceback, an error without a remedy, or that a word of `told` is not in it."""
    error, text = outcome.exception, " ".join(outcome.output.split())
    yield from (f"{said} does not tell {word!r}" for word in reported if word not in text)
    if error is None or isinstance(error, SystemExit):
        if outcome.exit_code not in (Exit.HOLDS, Exit.CAPABILITY) or not text:
            yield f"{said} ended with {outcome.exit_code} and said {text[-80:]!r}"
        if "Traceback" in text or "None" in text.split():
            yield f"{said} printed {text[-200:]!r}"
    elif isinstance(error, UsageError | CapabilityError):
        yield from (f"{said}: no remedy in {why}" for why in error.problems if not (why.remedy or "; " in why.message))
    else:
        where = traceback.extract_tb(outcome.exc_info[2])[-1] if outcome.exc_info else None
        place = f" at {Path(where.filename).name}:{where.lineno}" if where else ""
        yield f"{said} failed with {type(error).__name__}: {error}{place}"


def _last_line() -> str:
    return traceback.format_exc().strip().splitlines()[-1]
