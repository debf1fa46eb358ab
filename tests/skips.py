"""Lists what tests skip, and fails where a reason is not on the list of expected ones.

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


def _checks(config: Any) -> bool:
    """Whether this process sees all tests: workers of xdist see their own."""
    return LIST in os.environ and not hasattr(config, "workerinput")


def pytest_sessionfinish(session: Any) -> None:
    if _checks(session.config) and unexpected(_of_pytest(session.config), expected(Path(os.environ[LIST]))):
        session.exitstatus = session.exitstatus or 1


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    if _checks(config):
        terminalreporter.section("skips")
        for line in listed(_of_pytest(config), expected(Path(os.environ[LIST]))):
            terminalreporter.write_line(line)


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
