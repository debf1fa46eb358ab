"""The user's own files for a command: read and hashed once, and every wrong one is named with its place."""

import hashlib
import json
import os
import re
import shutil

import pytest

from partywall import sandbox
from partywall.agent.catalogue import shipped
from partywall.core.capability import Options
from partywall.errors import CapabilityError, UsageError
from partywall.events import silent
from partywall.run.capability import RunJob, Runs
from partywall.run.document.scenario import Scenario
from partywall.run.findings.sameness import workloads_differ
from partywall.run.plan import Topology, files, make, room
from partywall.run.plan.checks import check_host
from partywall.run.plan.requirements import commands
from partywall.run.record import RunDirectory
from partywall.run.record import evidence as read_evidence
from partywall.run.report.host import own_files
from partywall.run.values.plan import Plan
from partywall.testing.hosts import fake_host

TEXT = """partywall: 1
name: own
victims:
  v:
    command: [./bench]
    version: [./bench, --version]
    metric: {regex: '(x)'}
    files:
      - bench
      - {from: data/in.bin, to: input.bin, executable: true}
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "bench").write_text("#!/bin/sh\n")
    (tmp_path / "bench").chmod(0o755)
    (tmp_path / "data" / "in.bin").write_bytes(b"input")
    (tmp_path / "own.yaml").write_text(TEXT)
    return tmp_path / "own.yaml"


def problems(file):
    with pytest.raises(UsageError) as caught:
        RunJob.read(str(file))
    return [
        (p.file, p.line, p.key, p.message.replace(str(file.parent), "."), bool(p.remedy)) for p in caught.value.problems
    ]


def test_each_file_is_known_by_its_hash_and_survives_the_plan(file):
    scenario = RunJob.read(str(file)).scenario
    bench, data = scenario.victims["v"].files
    assert (bench.name, bench.executable, bench.size) == ("bench", True, 10)
    assert (data.name, data.executable, data.sha256) == ("input.bin", True, hashlib.sha256(b"input").hexdigest())
    plan = make(scenario, Topology((0, 1), ()), shipped())
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


def test_every_file_that_cannot_be_copied_is_named_with_its_line(file, monkeypatch):
    (file.parent / "bench").unlink()
    (file.parent / "data" / "in.bin").unlink()
    os.mkfifo(file.parent / "data" / "in.bin")
    assert problems(file) == [
        (str(file), 9, "victims.v.files[0]", "./bench cannot be read: No such file or directory", True),
        (str(file), 10, "victims.v.files[1]", "./data/in.bin cannot be read: it is not a regular file", True),
    ]
    (file.parent / "bench").mkdir()
    (file.parent / "data" / "in.bin").unlink()
    (file.parent / "data" / "in.bin").write_bytes(b"four")
    assert [problem[3] for problem in problems(file)] == ["./bench cannot be read: it is a directory"]
    (file.parent / "bench").rmdir()
    (file.parent / "bench").symlink_to("bench")
    assert [problem[3] for problem in problems(file)] == ["./bench cannot be read: Too many levels of symbolic links"]
    (file.parent / "bench").unlink()
    (file.parent / "bench").write_bytes(b"twelve bytes")
    (file.parent / "bench").chmod(0o755)
    monkeypatch.setattr(sandbox.own_files, "FILES_BYTES_MAX", 11)
    assert problems(file)[0][3] == "./bench cannot be read: it has more than 11 B"
    monkeypatch.undo()
    monkeypatch.setattr(files, "FILES_BYTES_MAX", 15)
    assert problems(file)[0][2:4] == ("victims.v.files", "the files have 16 B, more than 15 B")


def test_a_scenario_cannot_say_what_a_file_contains(file):
    file.write_text(TEXT.replace("- bench", "- {from: bench, sha256: '00', size: 1}"))
    assert problems(file)[0][2:4] == (
        "victims.v.files[0]",
        "path, size and sha256 are read from the file and cannot be given",
    )


def test_a_file_that_may_not_be_read_is_named(file, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    assert problems(file)[0][3] == "./bench cannot be read: Permission denied"


def test_a_program_that_is_not_executable_is_named_with_the_remedy(file):
    (file.parent / "bench").chmod(0o644)
    with pytest.raises(UsageError, match=r"files\[0\]: ./bench cannot be started.*add executable: true.*chmod \+x /"):
        RunJob.read(str(file))
    file.write_text(TEXT.replace("- bench", "- {from: bench, executable: true}"))
    assert RunJob.read(str(file)).scenario.victims["v"].files[0].executable


def test_files_that_exceed_the_disk_of_their_guest_are_refused_before_the_run(file):
    file.write_text(TEXT + "    sandbox: {backend: qemu, root: [], disk: {size: 64MiB}}\n")
    (file.parent / "data" / "in.bin").write_bytes(bytes(60 << 20))
    trial = make(RunJob.read(str(file)).scenario, Topology((0, 1), ()), shipped()).trials[0]
    (problem,) = room.beyond_disk(trial)
    assert problem.key == "victims.v.sandbox.disk.size"
    assert problem.message == "its files have 60 MiB, and a guest's disk of 64 MiB has room for 54.4 MiB"


def test_the_user_sees_files_and_version_before_allowing_commands(file):
    listed = commands(RunJob.read(str(file)).scenario)
    assert [text.partition(",")[0] for text in listed] == [
        "victims.v.files[0]",
        "victims.v.files[1]",
        "victims.v.version",
        "victims.v.command",
    ]
    assert re.search(r"data/in.bin as input.bin \(5 B, SHA-256 [0-9a-f]{64}\)", listed[1])


def test_a_command_among_its_own_files_need_not_be_installed(file):
    scenario = RunJob.read(str(file)).scenario
    bare_host = fake_host(which=lambda _name: None)
    check_host(scenario, bare_host)
    victim = scenario.victims["v"]
    bare = scenario.model_copy(update={"victims": {"v": victim.model_copy(update={"files": victim.files[1:]})}})
    with pytest.raises(CapabilityError, match=r"(?s)v\.command: '\./bench' is not installed.*v\.version"):
        check_host(bare, bare_host)


def test_a_run_does_not_resume_with_other_files_and_a_comparison_says_so(file, tmp_path):
    def planned():
        return make(RunJob.read(str(file)).scenario, Topology((0, 1), ()), shipped())

    before = planned()
    facts = {"cpus_allowed": [0, 1], "memory": {"usable_bytes": 1 << 40}, "missing": []}
    run = RunDirectory.create(tmp_path / "run", TEXT, before, facts)
    (file.parent / "data" / "in.bin").write_bytes(b"other")
    options = Options(fake_host(), allow_commands=True)
    with pytest.raises(
        UsageError, match=r"v\.files\[1\]: .*in\.bin has changed since the run was planned — restore it"
    ):
        Runs().resume(run, options, silent)
    (difference,) = workloads_differ(planned(), before).values()
    assert "sha256" in difference
    (file.parent / "data" / "in.bin").write_bytes(b"input")
    elsewhere = shutil.copytree(file.parent, tmp_path / "elsewhere", ignore=lambda *_: ["elsewhere", "run"])
    file = elsewhere / file.name
    assert not workloads_differ(planned(), before), "the same files in another folder"


def test_the_report_names_files_and_versions(file, tmp_path):
    plan = make(RunJob.read(str(file)).scenario, Topology((0, 1), ()), shipped())
    facts = {"cpus_allowed": [0, 1], "memory": {"usable_bytes": 1 << 40}, "missing": []}
    run = RunDirectory.create(tmp_path / "run", TEXT, plan, facts)
    assert dict(own_files(read_evidence(run)))["version of victim v"] == "unknown, because no trial began"
    turn = {"trial": plan.trials[0].id, "rate_max": {}, "facts": {}, "counters": []}
    for visit, version in (("0", "bench 1.2"), ("1", "bench 1.2"), ("2", "bench 1.3")):
        run.append("visit", visit=visit, versions={"victim": version}, **turn)
    rows = list(own_files(read_evidence(run)))
    assert rows[1] == ("file of victim v", f"input.bin: 5 B, SHA-256 {hashlib.sha256(b'input').hexdigest()[:16]}…")
    assert rows[2] == ("version of victim v", "bench 1.2; bench 1.3")


def test_records_without_files_are_still_read():
    old = {"partywall": 1, "name": "x", "victims": {"v": {"probe": "integer"}}}
    assert Scenario.model_validate_json(json.dumps(old)).victims["v"].files == ()
