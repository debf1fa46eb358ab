"""What users install: the wheel holds all of Partywall, and none is made without the agent."""

from __future__ import annotations

import shutil
import stat
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import hatch_build

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
AGENT = "partywall/_bin/partywall-agent"
X86_64, AARCH64, RISC_V, BPF = 62, 183, 243, 247
INTERPRETER, LOADED = 3, 1


def build(root: Path, dist: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(dist)]
    return subprocess.run(argv, cwd=root, text=True, capture_output=True, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    if not (ROOT / "src" / AGENT).exists():
        pytest.skip("needs the agent built: make build")
    dist = tmp_path_factory.mktemp("dist")
    done = build(ROOT, dist)
    assert done.returncode == 0, done.stderr
    (file,) = dist.iterdir()
    with zipfile.ZipFile(file) as opened:
        yield opened


def executable(machine: int, *segments: int) -> bytes:
    """A 64-bit ELF header, and program headers of these kinds right behind it."""
    header = struct.pack(
        "<4sBB10xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 3, machine, 1, 0, 64, 0, 0, 64, 56, len(segments), 0, 0, 0
    )
    return header + b"".join(struct.pack("<I52x", kind) for kind in segments)


def test_the_wheel_holds_every_file_of_the_package(wheel: zipfile.ZipFile):
    package = ROOT / "src" / "partywall"
    files = {str(file.relative_to(ROOT / "src")) for file in package.rglob("*") if file.is_file()}
    expected = {file for file in files if "__pycache__" not in file}
    held = {name for name in wheel.namelist() if name.startswith("partywall/")}
    assert held == expected
    # Those that only run-time looks would miss.
    assert {"partywall/scenarios/demo.yaml", "partywall/core/report/assets/report.js", "partywall/py.typed"} < held


def test_the_wheel_brings_the_pages_that_messages_name(wheel: zipfile.ZipFile):
    pages = {file.name for file in (ROOT / "docs").glob("*.md")}
    folder = ".data/data/share/doc/partywall/"
    assert pages <= {name.partition(folder)[2] for name in wheel.namelist()}


def test_the_wheel_brings_what_is_installed_with_partywall_watch(wheel: zipfile.ZipFile):
    """Of which the deb and the rpm are made: who has no clone finds units, manifests, alerts and the dashboard."""
    given = ROOT / "packaging"
    folders = ("systemd", "kubernetes", "prometheus", "grafana")
    files = {str(file.relative_to(given)) for name in folders for file in (given / name).iterdir()}
    assert len(files) > 4
    assert files <= {name.partition(".data/data/share/partywall/")[2] for name in wheel.namelist()}


def test_the_agent_in_the_wheel_can_be_executed(wheel: zipfile.ZipFile, tmp_path: Path):
    assert stat.S_IMODE(wheel.getinfo(AGENT).external_attr >> 16) == 0o755
    agent = Path(wheel.extract(AGENT, tmp_path))
    agent.chmod(0o755)
    said = subprocess.run([agent, "--version"], text=True, capture_output=True, check=True).stdout
    assert said.startswith("partywall-agent ")


def test_the_wheel_is_for_machines_that_run_its_agent(wheel: zipfile.ZipFile):
    machine = hatch_build.static_machine((ROOT / "src" / AGENT).read_bytes())
    assert wheel.filename is not None
    assert wheel.filename.endswith(f"-py3-none-manylinux_2_17_{machine}.manylinux2014_{machine}.whl")
    (info,) = (name for name in wheel.namelist() if name.endswith(".dist-info/WHEEL"))
    assert "Root-Is-Purelib: false" in wheel.read(info).decode()


def clone_without_agent(folder: Path) -> None:
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "src/partywall/__init__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)


def test_a_wheel_without_an_agent_is_refused_with_one_sentence(tmp_path: Path):
    clone_without_agent(tmp_path)
    done = build(tmp_path, tmp_path / "dist")
    assert done.returncode != 0
    (line,) = done.stderr.strip().splitlines()
    assert "partywall-agent is missing" in line
    assert "run 'make wheel'" in line


def test_a_wheel_whose_agent_cannot_guard_or_trace_is_refused_with_one_sentence(tmp_path: Path):
    clone_without_agent(tmp_path)
    agent = tmp_path / "src" / AGENT
    agent.parent.mkdir(parents=True)
    agent.write_bytes(executable(X86_64, LOADED))
    done = build(tmp_path, tmp_path / "dist")
    assert done.returncode != 0
    (line,) = done.stderr.strip().splitlines()
    assert "holds no eBPF programs" in line
    assert "apt-get install clang" in line


def test_ebpf_programs_are_found_in_the_executable():
    agent = executable(X86_64, LOADED)
    assert not hatch_build.holds_ebpf(agent)
    assert not hatch_build.holds_ebpf(agent + executable(AARCH64))
    assert hatch_build.holds_ebpf(agent + executable(AARCH64) + b"..." + executable(BPF))


def test_the_machine_is_read_from_the_executable():
    assert hatch_build.static_machine(executable(X86_64, LOADED)) == "x86_64"
    assert hatch_build.static_machine(executable(AARCH64, LOADED, LOADED)) == "aarch64"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no 64-bit Linux executable"),
        (b"#!/bin/sh\n", "no 64-bit Linux executable"),
        (executable(RISC_V, LOADED), "no wheels for"),
        (executable(X86_64, LOADED, INTERPRETER), "linked dynamically"),
    ],
    ids=["empty", "a script", "another machine", "dynamic"],
)
def test_an_executable_that_would_not_run_everywhere_is_refused(content: bytes, why: str):
    with pytest.raises(ValueError, match=why):
        hatch_build.static_machine(content)
