"""What is released: one version, manual pages, a bill of materials, and bytes that depend on the commit alone."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from ruamel.yaml import YAML
from typer.testing import CliRunner

from labs.release import agents, bill, manual, packages, wheels
from labs.release.__main__ import check
from labs.release.target import CLONE, DISTRIBUTIONS, Release
from partywall import __version__
from partywall.cli.app import app, commands
from partywall.errors import ProblemsError, UsageError

UNITS = sorted((CLONE / "packaging/systemd").iterdir())


@pytest.fixture
def release(tmp_path: Path) -> Release:
    for folder in ("build", "dist"):
        (tmp_path / folder).mkdir()
    return Release("9.8.7", 1_000_000_000, tmp_path / "build", tmp_path / "dist")


def test_the_agent_and_the_changelog_state_the_version_of_the_controller():
    check(__version__, CLONE)


def test_all_places_that_state_another_version_are_named_at_once(tmp_path: Path):
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent/Cargo.toml").write_text('[workspace.package]\nversion = "0.0.9"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n")
    with pytest.raises(ProblemsError) as refused:
        check("9.8.7", tmp_path)
    assert [problem.file for problem in refused.value.problems] == ["agent/Cargo.toml", "CHANGELOG.md"]
    assert "version 0.0.9, but src/partywall/__init__.py states 9.8.7" in str(refused.value)


def test_every_command_has_a_manual_page_with_all_its_options(tmp_path: Path):
    names = manual.write_pages(tmp_path, 0)
    assert {f"partywall-{name}" for name in commands()} < set(names)
    assert sorted(f"{name}.1" for name in names) == sorted(file.name for file in tmp_path.iterdir())
    for name in ("run", "guard-run", "watch"):
        page = (tmp_path / f"partywall-{name}.1").read_text().replace("\\-", "-")
        shown = CliRunner().invoke(app, [*name.split("-"), "--help"]).output
        options = set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", shown, re.MULTILINE))
        assert len(options) > 1
        assert {option for option in options if option not in page} == set()


def test_a_manual_page_has_no_request_from_a_text():
    assert manual.escaped(".bp\n'so /etc/passwd\na-b\\c") == "\\&.bp\n\\&'so /etc/passwd\na\\-b\\ec"


@pytest.mark.long
def test_manual_pages_are_without_fault(tmp_path: Path):
    if not shutil.which("groff"):
        pytest.skip("groff is not installed")
    manual.write_pages(tmp_path, 0)
    argv = ["groff", "-Kutf8", "-man", "-ww", "-z", "-Tutf8", *map(str, sorted(tmp_path.iterdir()))]
    assert subprocess.run(argv, capture_output=True, text=True, check=False).stderr == ""


def test_completions_are_written_for_three_shells(tmp_path: Path):
    manual.write_completions(tmp_path)
    written = [(tmp_path / place).read_text() for place in manual.SHELLS.values()]
    assert len(written) == 3
    assert all("_PARTYWALL_COMPLETE" in text for text in written)


def test_the_packages_bring_a_fitting_version_of_every_dependency():
    """`make release-lock` chooses them."""
    needed = tomllib.loads((CLONE / "pyproject.toml").read_text())["project"]["dependencies"]
    brought = [(each["name"], each["version"]) for each in bill.python_packages(_locked())]
    for requirement in map(Requirement, needed):
        name = re.sub(r"[._]", "-", requirement.name)
        versions = [version for each, version in brought if each == name]
        assert versions, requirement
        assert all(version in requirement.specifier for version in versions), requirement


def test_every_file_that_the_packages_bring_has_a_digest():
    blocks = re.split(r"\n(?=[a-z])", _locked())
    assert len(blocks) > 30
    assert [block.partition(" ")[0] for block in blocks if "--hash=sha256:" not in block] == []


def test_the_bill_lists_crates_with_digests_and_no_package_of_another_system(release: Release):
    bill.write(release)
    (file,) = release.dist.iterdir()
    written = json.loads(file.read_text())
    purls = [component["purl"] for component in written["components"]]
    assert len(purls) == len(set(purls)) > 100
    assert not [purl for purl in purls if "colorama" in purl or "partywall" in purl]
    crates = [each for each in written["components"] if each["purl"].startswith("pkg:cargo/")]
    assert all(re.fullmatch("[0-9a-f]{64}", each["hashes"][0]["content"]) for each in crates)
    assert written["metadata"]["timestamp"] == "2001-09-09T01:46:40Z"
    assert bill.bill(release) == written


def test_a_bill_of_other_content_has_another_identifier(release: Release, monkeypatch: pytest.MonkeyPatch):
    before = bill.bill(release)["serialNumber"]
    monkeypatch.setattr(bill, "crates", lambda _lock: [])
    assert bill.bill(release)["serialNumber"] != before


def test_checksums_are_as_sha256sum_reads_them(release: Release):
    (release.dist / "one").write_text("1")
    wheels.checksums(release)
    argv = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(argv, cwd=release.dist, check=False, capture_output=True).returncode == 0
    (release.dist / "one").write_text("2")
    assert subprocess.run(argv, cwd=release.dist, check=False, capture_output=True).returncode == 1


def test_modes_and_times_of_packed_files_do_not_depend_on_the_builder(tmp_path: Path):
    for name, mode in (("bin/partywall", 0o600), ("completions/partywall", 0o777), ("_bin/partywall-agent", 0o700)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(mode)
    packages._set_modes(tmp_path, 1_000_000_000)
    found = {file.relative_to(tmp_path).as_posix(): file.stat() for file in tmp_path.rglob("partywall*")}
    assert {name: oct(status.st_mode & 0o777) for name, status in found.items()} == {
        "bin/partywall": "0o755",
        "completions/partywall": "0o644",
        "_bin/partywall-agent": "0o755",
    }
    assert {status.st_mtime for status in found.values()} == {1_000_000_000}


def test_nothing_of_the_builders_folder_stays_not_even_a_digest(tmp_path: Path):
    folder = tmp_path / "partywall-1.dist-info"
    folder.mkdir()
    names = ("METADATA", "direct_url.json", "uv_cache.json")
    for name in names:
        (folder / name).write_text("file:///home/somebody")
    (folder / "RECORD").write_text("".join(f"{folder.name}/{name},sha256=x,1\n" for name in (*names, "RECORD")))
    packages._forget_builder(tmp_path)
    assert sorted(file.name for file in folder.iterdir()) == ["METADATA", "RECORD"]
    lines = (folder / "RECORD").read_text().splitlines()
    assert [line.partition(",")[0].rpartition("/")[2] for line in lines] == ["METADATA", "RECORD"]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda each: each.name)
def test_a_package_needs_the_python_that_its_modules_are_compiled_for(release: Release, distribution):
    text = packages._config(release, distribution, "amd64", release.build)
    assert "$" not in text
    assert f"python3 (>= {distribution.python})" in text
    assert f"python(abi) = {distribution.python}" in text
    assert "mtime: 2001-09-09T01:46:40Z" in text


def test_the_package_of_a_later_debian_replaces_that_of_an_earlier_one(release: Release):
    if not shutil.which("dpkg"):
        pytest.skip("dpkg is not installed")
    numbers = [packages._number(release, each) for each in DISTRIBUTIONS if each.kind == "deb"]
    assert len(numbers) == 2
    assert subprocess.run(["dpkg", "--compare-versions", numbers[0], "lt", numbers[1]], check=False).returncode == 0


def test_the_packages_have_each_command_of_the_wheel(tmp_path: Path):
    scripts = tomllib.loads((CLONE / "pyproject.toml").read_text())["project"]["scripts"]
    assert {name: f"{module}:main" for name, module in packages.COMMANDS.items()} == scripts
    packages._commands(tmp_path)
    packages._set_modes(tmp_path, 1_000_000_000)
    for name in scripts:
        staged = tmp_path / "usr/bin" / name
        assert staged.resolve() == tmp_path / "usr/lib/partywall/bin" / name
        assert os.access(staged, os.X_OK)
        shown = subprocess.run([sys.executable, staged, "--help"], capture_output=True, text=True, check=True).stdout
        assert f"Usage: {name} [" in shown


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_service_starts_a_command_that_there_is(unit: Path, tmp_path: Path):
    ((program, line),) = re.findall(r"^ExecStart=/usr/bin/(\S+) (.*)$", unit.read_text(), re.MULTILINE)
    words = line.split()
    packages._commands(tmp_path)
    assert (tmp_path / "usr/bin" / program).is_file(), "no package has it"
    if program != "partywall":
        argv = [str(Path(sys.executable).with_name(program)), "--help"]
        said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        assert {word for word in words if word.startswith("--") and word not in said} == set()
        return
    named = [word for word in words if not word.startswith(("/", "-", "%"))][:2]
    page = CliRunner().invoke(app, [*named, "--help"])
    assert page.exit_code == 0, page.output
    assert {word for word in words if word.startswith("--") and word not in page.output} == set()


def test_the_guards_service_waits_for_guests_that_come_later_however_often_it_fails():
    """A unit that gave up after a boot left tenants without limits for good, and no report said so."""
    text = (CLONE / "packaging/systemd/partywall-guard@.service").read_text()
    assert re.search(r"^ExecStart=/usr/bin/partywall guard run --wait-for-vifs ", text, re.MULTILINE)
    assert re.search(r"^StartLimitIntervalSec=0$", text, re.MULTILINE)
    assert re.search(r"^Restart=on-failure$", text, re.MULTILINE)


def _locked() -> str:
    return (CLONE / "packaging/requirements.txt").read_text()


@pytest.mark.long
@pytest.mark.parametrize(("kernel", "code"), [("integer", 0), ("interger", 1)])
def test_the_hook_for_commits_refuses_a_scenario_with_a_mistake(tmp_path: Path, kernel: str, code: int):
    (hook,) = YAML(typ="safe").load(CLONE / ".pre-commit-hooks.yaml")
    file = tmp_path / "small.partywall.yaml"
    file.write_text(f"partywall: 1\nname: small\nvictims:\n  api: {{probe: {kernel}}}\n")
    assert re.search(hook["files"], file.name)
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    argv = [*shlex.split(hook["entry"]), str(file)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr


def test_an_agent_that_was_built_before_is_taken_as_it_is(release: Release, tmp_path: Path):
    (tmp_path / "aarch64").mkdir()
    agent = tmp_path / "aarch64/partywall-agent"
    agent.touch()
    assert agents.built("aarch64", release, tmp_path) == agent
    with pytest.raises(UsageError, match="x86_64/partywall-agent is missing"):
        agents.built("x86_64", release, tmp_path)


def test_an_agent_is_static_and_names_no_folder_of_the_builder():
    config = tomllib.loads((CLONE / "agent/.cargo/config.toml").read_text())
    words = agents.flags({"/home/alice": "/cargo"}).split()
    assert words[: len(config["build"]["rustflags"])] == config["build"]["rustflags"]
    assert words[-1] == "--remap-path-prefix=/home/alice=/cargo"
