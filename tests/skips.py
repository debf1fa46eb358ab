"""Lists what tests skip, and fails where a reason is not on the list, or most measured tests found the host busy.

pytest uses it as a plug-in, and `python3 tests/skips.py` reads what `cargo test -- --show-output` prints. Both do so if
PARTYWALL_SKIPS names the list: a pattern a line as in shells, and comments. Only the standard library is used.
"""

from __future__ import annotations

import fnmatch
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

LIST = "PARTYWALL_SKIPS"
MEASURED, INCONCLUSIVE = "is_measured", "inconclusive: "
"""The attribute of a test of `tests.measured`, and how its reason begins if the host was busy."""
MOST_INCONCLUSIVE = 1 / 3
"""The share of measured tests. With more, nobody would notice a broken effect for months."""
RUST = re.compile(r"skipped: (.*)")
"""How a test in Rust says it; its output is otherwise that of a test that passes."""


def expected(file: Path) -> list[str]:
    """The patterns of a list."""
    lines = map(str.strip, file.read_text("utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def unexpected(reasons: Iterable[str], patterns: list[str]) -> list[str]:
    return [reason for reason in reasons if not any(fnmatch.fnmatchcase(reason, each) for each in patterns)]


def listed(skipped: Counter[str], patterns: list[str]) -> Iterator[str]:
    """A line for each reason, and those that nobody expects once more with the remedy."""
    yield f"{skipped.total()} skipped, by reason"
    for reason, times in skipped.most_common():
        yield f"{times:5}  {reason}"
    for reason in unexpected(skipped, patterns):
        yield f"ERROR: {reason}: nobody expects this skip. Install what is missing, or add a pattern to {LIST}"


# pytest


def _of_pytest(config: Any) -> Counter[str]:
    """Reasons of skips. A skip report's `longrepr` has file, line and reason."""
    reports = config.pluginmanager.get_plugin("terminalreporter").stats.get("skipped", [])
    return Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)


def crowded(inconclusive: int, measured: int) -> str:
    """What is wrong if too many of the measured tests found the host busy; empty if not."""
    if inconclusive < 2 or inconclusive <= MOST_INCONCLUSIVE * measured:
        return ""
    return f"ERROR: {inconclusive} of {measured} measured tests were inconclusive. Run them again on an idle host"


def _crowded(config: Any) -> str:
    """By the reports of a session. Tests that skip for what the host lacks do not count."""
    stats = config.pluginmanager.get_plugin("terminalreporter").stats
    calls = [report for outcome in ("passed", "failed") for report in stats.get(outcome, []) if report.when == "call"]
    reasons = _of_pytest(config)
    inconclusive = sum(times for reason, times in reasons.items() if reason.startswith(INCONCLUSIVE))
    return crowded(inconclusive, inconclusive + sum(MEASURED in report.keywords for report in calls))


def _checks(config: Any) -> bool:
    """Whether this process sees all tests: workers of xdist see their own."""
    return LIST in os.environ and not hasattr(config, "workerinput")


def pytest_sessionfinish(session: Any) -> None:
    config = session.config
    if _checks(config) and (unexpected(_of_pytest(config), expected(Path(os.environ[LIST]))) or _crowded(config)):
        session.exitstatus = session.exitstatus or 1


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    if _checks(config):
        terminalreporter.section("skips")
        for line in listed(_of_pytest(config), expected(Path(os.environ[LIST]))):
            terminalreporter.write_line(line)
        if said := _crowded(config):
            terminalreporter.write_line(said)


# cargo test


def of_cargo(lines: Iterable[str], out: TextIO) -> Counter[str]:
    """Reasons of skips in the output of tests that pass, which is passed on to `out` without that output."""
    skipped: Counter[str] = Counter()
    passed = False
    for line in lines:
        passed = (passed or line.rstrip() == "successes:") and not line.startswith(("failures:", "test result:"))
        if not passed:
            out.write(line)
            out.flush()
        elif found := RUST.match(line):
            skipped[found[1].rstrip()] += 1
    return skipped


def main() -> int:
    patterns = expected(Path(os.environ[LIST]))
    skipped = of_cargo(sys.stdin, sys.stdout)
    print("\n".join(listed(skipped, patterns)))  # noqa: T201 - that is what it is for
    return 1 if unexpected(skipped, patterns) else 0


if __name__ == "__main__":
    sys.exit(main())
