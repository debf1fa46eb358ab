"""The comparison of two versions in CI: the order of its runs, what each version sees, and its exit code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from partywall.run.record import RunDirectory

CLONE = Path(__file__).parents[2]
ACTION = CLONE / "packaging/action"
SCRIPT = ACTION / "compare.sh"
GITLAB = CLONE / "packaging/gitlab/partywall.yml"
PAGE = (CLONE / "docs/ci.md").read_text("utf-8")
# Records each call with the folder's version and the image, and ends as it is told.
DOUBLE = """\
#!/bin/sh
echo "$1 $(cat version) $IMAGE" >> "$CALLS"
[ "$1" = run ] && exit "${RUN_CODE:-0}"
echo "$@"
exit "${COMPARE_CODE:-0}"
"""
SCENARIO = """\
partywall: 1
name: small
victims: {api: {probe: integer}}
aggressors: {batch: {stressor: integer}}
budget: 3s
"""


def read(path: Path) -> dict:
    return YAML(typ="safe").load(path.read_text("utf-8"))


@pytest.fixture
def versions(tmp_path: Path) -> Path:
    """Two versions, and a double of `partywall` before all other programs."""
    for name in ("base", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "version").write_text(name)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/partywall").write_text(DOUBLE)
    (tmp_path / "bin/partywall").chmod(0o755)
    return tmp_path


def compared(versions: Path, **given: str) -> subprocess.CompletedProcess[str]:
    path = f"{versions}/bin:{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "CALLS": f"{versions}/calls", "GITHUB_STEP_SUMMARY": ""} | given
    argv = [str(SCRIPT), "small.yaml", str(versions / "base")]
    return subprocess.run(argv, cwd=versions / "new", env=env, capture_output=True, text=True, check=False)


def test_versions_take_turns_in_an_order_that_turns_round_and_each_sees_its_image(versions: Path):
    done = compared(versions, RUNS="3", IMAGE="shop:2", BASE_IMAGE="shop:1")
    assert done.returncode == 0, done.stderr
    new, base = "run new shop:2", "run base shop:1"
    calls = (versions / "calls").read_text().splitlines()
    assert calls == [base, new, new, base, base, new, "compare new shop:2"]
    assert "--in-turn --chance 1% --tolerance 1%" in done.stdout
    assert done.stdout.count("--also-reference") == 2


@pytest.mark.parametrize(
    ("code", "words"), [(0, "as well as the other"), (1, "worse than the other"), (3, "not known: the runs vary")]
)
def test_the_summary_and_the_exit_code_are_those_of_the_comparison(versions: Path, code: int, words: str):
    summary = versions / "summary"
    done = compared(versions, RUNS="2", COMPARE_CODE=str(code), RUN_CODE="1", GITHUB_STEP_SUMMARY=str(summary))
    assert done.returncode == code
    assert summary.read_text() == (versions / "new/partywall-ci/summary.md").read_text()
    assert words in summary.read_text()


def test_a_run_that_fails_ends_the_comparison_with_its_code_after_the_clean_up(versions: Path):
    done = compared(versions, RUN_CODE="5", BEFORE="echo up >> events", AFTER="echo down >> events")
    assert done.returncode == 5
    assert (versions / "calls").read_text().splitlines() == ["run base "]
    assert (versions / "base/events").read_text().split() == ["up", "down"]


def test_a_build_that_fails_ends_the_comparison_before_anything_is_measured(versions: Path):
    assert compared(versions, BEFORE="exit 7").returncode == 7
    assert not (versions / "calls").exists()


@pytest.mark.host
@pytest.mark.long
def test_two_equal_versions_are_measured_and_compared(tmp_path: Path):
    for name in ("base", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "small.yaml").write_text(SCENARIO)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/partywall").write_text(f'#!/bin/sh\nexec {sys.executable} -m partywall "$@"\n')
    (tmp_path / "bin/partywall").chmod(0o755)
    done = compared(tmp_path, RUNS="2")
    assert done.returncode in (0, 1, 3), done.stderr
    results = tmp_path / "new/partywall-ci"
    assert all(RunDirectory.open(results / f"{side}-{number}").ended for side in ("new", "base") for number in (1, 2))
    assert "4 runs show how much runs vary" in " ".join((results / "summary.md").read_text().split())


def test_every_input_of_the_action_is_used_and_every_variable_of_the_script_is_set():
    action = read(ACTION / "action.yml")
    text = (ACTION / "action.yml").read_text()
    assert {name for name in action["inputs"] if f"inputs.{name} " not in text} == set()
    assert all(each["description"] for each in action["inputs"].values())
    steps = action["runs"]["steps"]
    assert all(step["shell"] == "bash" and "${{" not in step["run"] for step in steps), "inputs are never code"
    told = set(re.findall(r"\$\{([A-Z_]+):", SCRIPT.read_text())) - {"GITHUB_STEP_SUMMARY"}
    assert told == set(steps[-1]["env"]) & told


def test_the_template_takes_files_that_a_release_has():
    from labs.release import wheels  # noqa: PLC0415
    from partywall import __version__  # noqa: PLC0415

    job = read(GITLAB)[".partywall"]
    assert f"partywall-{__version__}-" in job["variables"]["WHEEL"]
    assert SCRIPT in wheels.SCRIPTS
    assert any(SCRIPT.name in line for line in job["script"])


@pytest.mark.parametrize("name", ["shellcheck"])
def test_scripts_are_without_fault(name: str):
    if not shutil.which(name):
        pytest.skip(f"{name} is not installed")
    done = subprocess.run([name, str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.long
def test_workflows_are_without_fault(tmp_path: Path):
    linter = shutil.which("actionlint", path=f"{os.environ['PATH']}:{CLONE}/benches/.peers/bin")
    if not linter:
        pytest.skip("actionlint is not installed")
    folder = tmp_path / ".github/workflows"
    shutil.copytree(CLONE / ".github/workflows", folder)
    blocks = [block for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "runs-on" in block]
    assert blocks
    for number, block in enumerate(blocks):
        (folder / f"{number}.yml").write_text(block)
    done = subprocess.run([linter, *map(str, folder.iterdir())], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
