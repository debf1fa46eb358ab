"""Skips are listed with their reasons, and one that nobody expects fails the tests of both halves."""

import io
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import skips

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest

def test_one():
    pytest.skip("mitmproxy is not installed")

@pytest.mark.skipif(True, reason="domains need: libvirtd")
def test_two():
    pass

def test_three():
    pass
"""
CARGO = """
running 3 tests
...
successes:

---- guard::tests::one stdout ----
skipped: no eBPF in this build

---- guard::tests::two stdout ----
skipped: a new network namespace: EPERM
something else

successes:
    guard::tests::one
    guard::tests::two

test result: ok. 3 passed; 0 failed
"""


@pytest.fixture
def expected(tmp_path):
    """Writes the list of expected reasons, and gives the environment that names it."""

    def written(*patterns: str) -> dict[str, str]:
        (tmp_path / "list").write_text("\n".join(("# what no package brings", "", *patterns)))
        return os.environ | {skips.LIST: str(tmp_path / "list"), "PYTHONPATH": str(ROOT)}

    return written


@pytest.mark.long
@pytest.mark.parametrize(
    ("patterns", "workers", "code"),
    [(("mitmproxy *", "domains need: *"), (), 0), (("mitmproxy *",), (), 1), (("mitmproxy *",), ("-n", "1"), 1)],
)
def test_pytest_fails_on_a_skip_that_is_not_on_the_list(expected, tmp_path, patterns, code, workers):
    (tmp_path / "test_it.py").write_text(TESTS)
    argv = [sys.executable, "-m", "pytest", "-p", "tests.skips", "-c", os.devnull, "--rootdir", ".", *workers, "."]
    done = subprocess.run(argv, cwd=tmp_path, env=expected(*patterns), capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "2 skipped, by reason" in done.stdout
    assert "1  domains need: libvirtd" in done.stdout
    assert ("ERROR: domains need: libvirtd: nobody expects this skip" in done.stdout) == bool(code)


MEASURING = """
import pytest
from tests.measured import measured

@pytest.mark.parametrize("number", range(6))
@measured
def test_effect(number):
    if number < {inconclusive}:
        pytest.skip("inconclusive: others took 50%")

def test_other():
    pytest.skip("no tmpfs")
"""


@pytest.mark.long
@pytest.mark.parametrize("workers", [(), ("-n", "1")])
@pytest.mark.parametrize(("inconclusive", "code"), [(2, 0), (3, 1), (6, 1)])
def test_measured_tests_that_are_mostly_inconclusive_fail(expected, tmp_path, inconclusive, code, workers):
    """A broken limit could have passed for months on a busy machine."""
    (tmp_path / "test_it.py").write_text(MEASURING.format(inconclusive=inconclusive))
    argv = [sys.executable, "-m", "pytest", "-p", "tests.skips", "-c", os.devnull, "--rootdir", ".", *workers, "."]
    environment = expected("inconclusive: *", "no tmpfs")
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert (f"ERROR: {inconclusive} of 6 measured tests were inconclusive" in done.stdout) == bool(code)


def test_one_inconclusive_test_is_no_failure_where_few_are_measured():
    assert (skips.crowded(1, 1), skips.crowded(0, 0)) == ("", "")


@pytest.mark.parametrize(("patterns", "code"), [(("no eBPF *", "a new network namespace*"), 0), (("no eBPF *",), 1)])
def test_cargos_output_fails_on_a_skip_that_is_not_on_the_list(expected, patterns, code):
    argv = [sys.executable, str(ROOT / "tests" / "skips.py")]
    done = subprocess.run(argv, env=expected(*patterns), input=CARGO, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout
    assert ("ERROR: a new network namespace: EPERM" in done.stdout) == bool(code)


def test_what_failing_tests_print_is_passed_on():
    failing = CARGO.replace(
        "\ntest result: ok", "\nfailures:\n\n---- three stdout ----\nskipped: not so\n\ntest result: no"
    )
    out = io.StringIO()
    assert skips.of_cargo(io.StringIO(failing), out) == Counter(
        ["no eBPF in this build", "a new network namespace: EPERM"]
    )
    assert out.getvalue().startswith("\nrunning 3 tests\n...\n")
    assert "---- three stdout ----\nskipped: not so\n\ntest result: no. 3 passed" in out.getvalue()


def test_the_list_of_ci_says_why_for_each_group_and_matches_no_whole_reason_by_chance():
    patterns = skips.expected(ROOT / ".ci" / "skips")
    assert len(patterns) == len(set(patterns))
    assert skips.unexpected(["anything"], patterns) == ["anything"]


def test_readme_says_which_marks_make_test_leaves_out():
    """A reader thought that moves of guests were tested."""
    makefile, readme = ((ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "README.md"))
    rules = dict(re.findall(r"^([a-z-]+):[^\n]*\n((?:\t[^\n]*\n)+)", makefile, re.MULTILINE))
    tests = [rules[name] for name in ("test-host", "test-controller")]
    never = set.intersection(*(set(re.findall(r"not (\w+)", rule)) for rule in tests))
    assert never == {"slow"}
    for mark in never:
        assert re.search(rf"leaves out the tests marked `{mark}`.*`make test-{mark}`", readme, re.DOTALL)
        assert f"-m {mark}" in rules[f"test-{mark}"]
