"""Studies of isolation: their files, the scenarios they expand into, and a short one carried out."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from partywall import study as studies
from partywall.cli.app import app
from partywall.errors import CapabilityError, UsageError
from partywall.host import Host
from partywall.host.label import WORK_ROOT
from partywall.host.settings import governor, held, ledger
from partywall.run.record import RunDirectory
from partywall.study import papers
from partywall.study.document import StudyRequest
from partywall.study.isolation.kind import (
    Isolation,
    Place,
    Refused,
    _check_files,
    _jobs,
    _notes,
    _smt_notes,
    _unplannable,
    _why_not,
)
from partywall.study.record import StudyDirectory
from partywall.testing import fake_host
from tests.study.made_up import part

NAMES = ("vits", "hyperv-quality")
UNSTATED = {"section 5.3 (Whetstone)", "section 5.3 (RAMspeed)", "section 5.3 (Iozone)"}
"""Of these benchmarks, the paper gives no result."""
PLACE = Place((0, 1), polls=False)


def read(name):
    return Isolation().read(studies.find(name).read_bytes(), name)


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_of_the_paper_has_a_rule_and_names_the_papers_series(name):
    study = read(name)
    paper = papers.load(study.paper)
    assert {*study.exhibits, *filter(None, [study.overview])} == {shown.id for shown in paper.exhibits}
    for shown in paper.exhibits:
        named = {place for claim in shown.claims for place in (claim.left, claim.than)} | set(shown.values)
        assert bool(named) == (shown.id not in UNSTATED)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", ["short", "long"])
@pytest.mark.parametrize("backend", ["container", "qemu", "process"])
def test_every_part_is_a_good_scenario_on_every_backend_that_can_do_it(name, length, backend):
    study = read(name)
    requested = StudyRequest(length=length, backends=(backend,))
    if (name, backend) == ("hyperv-quality", "process"):
        with pytest.raises(UsageError, match="the process backend cannot do cpu_limit"):
            list(_jobs(study, requested, PLACE))
        return
    jobs = list(_jobs(study, requested, PLACE))
    assert len({job.name for job in jobs}) == len(jobs)
    for job in jobs:
        sandboxes = [victim.sandbox.backend for victim in job.scenario.victims.values()]
        levels = job.scenario.factors.get("sandbox.backend", ())
        assert backend in {*sandboxes, *levels}


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cpus", [2, 8, 64])
def test_every_part_fits_into_guests_on_hosts_of_any_size(name, cpus, monkeypatch, tmp_path):
    monkeypatch.setenv("PARTYWALL_CACHE", str(prepared_kernel(tmp_path)))
    host = fake_host(cpus=cpus)
    jobs = list(_jobs(read(name), StudyRequest(backends=("qemu",)), Place.of(host)))
    assert jobs
    # This host's disk lets no I/O scheduler be chosen.
    lacking = {"schedulers"} if name == "vits" else set()
    assert {job.part for job in jobs if _why_not(job, Refused({}, held.refused(host)))} == lacking
    going = [job for job in jobs if job.part not in lacking]
    assert [error for job in going if (error := _unplannable(job, StudyRequest(), host, WORK_ROOT))] == []


def test_figure_9_can_be_requested_in_the_papers_guests_and_belongs_to_no_form(monkeypatch, tmp_path):
    monkeypatch.setenv("PARTYWALL_CACHE", str(prepared_kernel(tmp_path)))
    host, study = fake_host(), read("vits")
    assert not [job for job in _jobs(study, StudyRequest(backends=("qemu",)), PLACE) if job.part == "small-guests"]
    requested = StudyRequest(backends=("qemu",), parts=("small-guests*",))
    jobs = list(_jobs(study, requested, PLACE))
    assert {job.values["operation"] for job in jobs} == {"read", "write", "reread", "rewrite", "readwrite"}
    for job in jobs:
        assert not _unplannable(job, requested, host, WORK_ROOT)
        sandboxes = [each.sandbox for each in (*job.scenario.victims.values(), *job.scenario.aggressors.values())]
        assert {(box.backend, box.memory) for box in sandboxes} == {("qemu", 128 << 20)}
    assert {name for name, places in Isolation().places(study, requested, host).items() if places} == {"fig 9"}


def test_a_part_of_the_long_form_is_measured_in_the_short_form_if_its_full_name_is_requested():
    def named(*parts):
        return [job.name for job in _jobs(read("hyperv-quality"), StudyRequest(parts=parts), PLACE)]

    assert named("tested-float-one") == ["tested-float-one-container"]
    assert named("tested-float-one-container") == ["tested-float-one-container"]
    assert not [name for name in named("tested-*") if "float" in name]


def test_every_benchmark_that_must_be_requested_has_a_figure():
    study, host = read("hyperv-quality"), fake_host(cpus=4)

    def measured(*parts):
        places = Isolation().places(study, StudyRequest(parts=parts), host)
        return {name: {place.series.rpartition(", ")[0] for place in known} for name, known in places.items() if known}

    assert UNSTATED.isdisjoint(measured())
    for part_name, figure in (("memory", "section 5.3 (RAMspeed)"), ("storage", "section 5.3 (Iozone)")):
        benchmarks = {each["benchmark"] for each in study.parts[part_name].each}
        assert measured(part_name) == {figure: benchmarks, "table 1": {""}}
    assert measured("tested-float-one", "tested-float-all")["section 5.3 (Whetstone)"] == {"one core", "all cores"}


def test_vectors_of_32_bytes_are_left_out_with_the_reason_on_a_processor_without_avx(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("flags\t\t: fpu sse sse2\n")
    study, requested, host = read("hyperv-quality"), StudyRequest(parts=("memory",)), fake_host(root=tmp_path)
    refused = Refused.by(host)
    left_out = {job.name for job in _jobs(study, requested, PLACE) if _why_not(job, refused)}
    assert left_out == {
        f"memory-wide-vector-{each}-container" for each in ("write", "read", "write-uncached", "read-uncached")
    }
    lines = Isolation().outline(study, requested, host).lines
    assert sum("left out: the processor lacks AVX" in line for line in lines) == len(left_out)
    notes = _notes(study, requested, PLACE, [], Refused({}, {}, {"avx": "the processor lacks AVX"}))
    assert "memory-wide-vector-read-container was not measured: the processor lacks AVX" in notes


def test_an_unknown_instruction_set_is_refused_where_it_stands():
    text = studies.find("hyperv-quality").read_text("utf-8").replace("needs: avx", "needs: avx9", 1)
    with pytest.raises(UsageError, match=r"each\[6\].needs: there is no instruction set 'avx9' — give sse2 or avx"):
        Isolation().read(text.encode(), "study.yaml")


def prepared_kernel(cache: Path) -> Path:
    """A cache with a kernel for guests, of which only its being there counts."""
    folder = cache / "guest-kernel"
    folder.mkdir()
    (folder / "kernel.json").write_text(json.dumps({"release": "6.1.0", "source": "made up", "modules": []}))
    (folder / "vmlinuz").touch()
    return cache


def test_several_backends_are_trials_of_one_run_unless_limits_are_switched_live():
    vits = list(_jobs(read("vits"), StudyRequest(backends=("container", "qemu"), parts=("cache",)), PLACE))
    assert [job.scenario.factors["sandbox.backend"] for job in vits] == [("container", "qemu")]
    hyperv = list(
        _jobs(read("hyperv-quality"), StudyRequest(backends=("container", "qemu"), parts=("tested-disk*",)), PLACE)
    )
    assert [job.name for job in hyperv] == ["tested-disk-one-container", "tested-disk-one-qemu"]
    item = _jobs(
        read("hyperv-quality"), StudyRequest(backends=("container", "qemu"), parts=("loading-RAM-all-disk",)), PLACE
    )
    assert [job.name for job in item] == ["loading-RAM-all-disk-container", "loading-RAM-all-disk-qemu"]


def test_parts_are_chosen_by_name_or_pattern_and_a_wrong_one_is_reported():
    names = [job.name for job in _jobs(read("vits"), StudyRequest(parts=("cache", "request-size-*write")), PLACE)]
    assert names == ["cache", "request-size-write", "request-size-diowrite", "request-size-rewrite"]
    with pytest.raises(UsageError, match="--only: no part is called disc — there are cache, memory"):
        list(_jobs(read("vits"), StudyRequest(parts=("disc",)), PLACE))


def test_mistakes_of_a_study_file_are_reported_together():
    content = studies.find("vits").read_text()
    wrong = content.replace("  fig 5:", "  fig 55:").replace("part: communication", "part: comm")
    wrong = wrong.replace("{short: 25s, long: 15min}", "{short: 25s}")
    with pytest.raises(UsageError) as reported:
        Isolation().read(wrong.encode(), "a.yaml")
    text = str(reported.value)
    assert "the paper has no 'fig 55'" in text
    assert "there is no part 'comm'" in text
    assert "no budget for the long form" in text
    missing = content.replace("{probe: cache}", "{probe: cash}")
    with pytest.raises(UsageError, match=r"part cache.*no kernel is called 'cash'"):
        list(_jobs(Isolation().read(missing.encode(), "a.yaml"), StudyRequest(), PLACE))


def governed(root: Path, now: str) -> Host:
    host = fake_host(root=root)
    for cpu in range(2):
        folder = host.path(governor.SYSFS) / f"cpu{cpu}" / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_available_governors").write_text("performance powersave\n")
        (folder / "scaling_governor").write_text(now)
    return host


def files(host: Host, name: str) -> list[Path]:
    return sorted(host.path(governor.SYSFS).glob(f"cpu*/cpufreq/{name}"))


def governors(host: Host) -> set[str]:
    return {file.read_text() for file in files(host, "scaling_governor")}


def test_a_governor_is_put_back_also_after_a_kill(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    host = governed(tmp_path, "performance")
    with governor.held("saving", host):
        assert governors(host) == {"powersave"}
        assert ledger.put_back() == ledger.Restored()
        left = json.loads((tmp_path / "state" / "governor.json").read_text())
    assert governors(host) == {"performance"}
    for file in files(host, "scaling_governor"):
        file.write_text("powersave")
    (tmp_path / "state" / "governor.json").write_text(json.dumps(left | {"start_ticks": 1}))
    assert set(ledger.put_back().files) == set(map(str, files(host, "scaling_governor")))
    assert governors(host) == {"performance"}
    assert not (tmp_path / "state" / "governor.json").exists()


@pytest.mark.parametrize("polls", [True, False])
def test_idle_cpus_poll_where_they_can_while_no_energy_is_saved(polls):
    jobs = list(_jobs(read("hyperv-quality"), StudyRequest(), Place((0, 1), polls=polls)))
    assert {(job.energy_saving, job.scenario.idle) for job in jobs} == {
        ("off", "poll" if polls else "sleep"),
        ("on", "sleep"),
    }


def threaded(root: Path, control: str, *, cores: int, euid: int = 0) -> Host:
    """A host of cores with two threads each: 0 and `cores`, and so on."""
    folder = root / "sys/devices/system/cpu/smt"
    folder.mkdir(parents=True)
    (folder / "control").write_text(f"{control}\n")
    places = [
        {"cpu": cpu, "package": 0, "core": cpu % cores, "siblings": [cpu % cores, cpu % cores + cores]}
        for cpu in range(2 * cores)
    ]
    return fake_host({"cpu": {"places": places, "smt": True}}, cpus=2 * cores, root=root, euid=euid)


@pytest.mark.parametrize(
    ("control", "cores", "euid", "stay"),
    [("on", 4, 0, "0,1,2,3"), ("on", 4, 1000, ""), ("on", 1, 0, ""), ("notimplemented", 4, 0, "")],
)
def test_smt_is_off_in_every_part_where_the_host_can_and_two_cpus_stay(tmp_path, control, cores, euid, stay):
    host, study = threaded(tmp_path, control, cores=cores, euid=euid), read("hyperv-quality")
    requested = StudyRequest(parts=("tested-integer-*",))
    jobs = list(_jobs(study, requested, Place.of(host)))
    assert {job.scenario.host.smt for job in jobs} == {"off" if stay else None}
    everything = next(job for job in jobs if job.values["cores"] == "all").scenario.victims["tested"]
    cpus = stay or ",".join(map(str, range(2 * cores)))
    assert (everything.sandbox.cpus, everything.threads) == (cpus, cpus.count(",") + 1)
    reported = [line for line in Isolation().outline(study, requested, host).lines if "SMT" in line]
    gone = ["SMT is switched off while 2 parts measure: CPU 4, 5, 6, 7 are offline"]
    assert reported == (gone if stay else [])


def test_the_page_says_in_which_parts_smt_was_on_and_why():
    study = read("hyperv-quality")
    scenario = {"victims": {"tested": {"probe": "integer"}}, "aggressors": {"load": {"stressor": "integer"}}}
    had = {"cpu": {"smt": True}}
    off = part(scenario | {"host": {"smt": "off"}}, lambda *_: 1e6, part="tested", host=had)
    left = part(scenario, lambda *_: 1e6, part="loading", host=had)
    none = part(scenario, lambda *_: 1e6, part="memory", host={"cpu": {"smt": False}})
    refused = Refused({}, {"smt": {"off": "no root"}})
    assert list(_smt_notes(study, [off, none], refused)) == [
        "SMT was switched off during all parts, so each CPU was a core."
    ]
    assert list(_smt_notes(study, [off, left], refused)) == [
        "SMT was switched off during tested-x, so each CPU was a core.",
        "SMT was on during loading-x, so CPUs shared cores: no root",
    ]
    assert not list(_smt_notes(study, [none], refused))


def test_a_host_without_a_governor_says_so(tmp_path):
    host = fake_host(root=tmp_path)
    assert "does not govern" in governor.why_not("saving", host)
    with governor.held("performance", host):
        assert not list(tmp_path.iterdir())


def test_a_request_of_which_the_host_can_measure_nothing_is_refused_with_the_reason(tmp_path):
    host = fake_host(root=tmp_path)
    requested = StudyRequest(parts=("energy-*",))
    with pytest.raises(CapabilityError, match="does not govern the processor's frequency") as refused:
        Isolation().check(read("hyperv-quality"), requested, host, WORK_ROOT, allow_commands=False)
    (problem,) = refused.value.problems
    assert problem.file.startswith("hyperv-quality, parts energy-integer-all-container, ")
    assert "--only" in problem.remedy


def test_only_root_changes_a_governor(tmp_path):
    host = replace(governed(tmp_path, "performance"), euid=1000)
    assert governor.refused(host) == dict.fromkeys(governor.KINDS, "changing the frequency governor needs root")


def test_the_page_tells_of_the_clock_of_the_host_that_measured():
    study = read("hyperv-quality")
    saving = next(name for name, part in study.parts.items() if part.energy_saving == "on")
    requested = StudyRequest(backends=("container",), parts=(saving,))
    reported = _notes(study, requested, PLACE, [], Refused({"saving": "no clock"}, {}))
    assert any("was not measured: no clock" in note for note in reported)
    assert not any("was not measured" in note for note in _notes(study, requested, PLACE, [], Refused({}, {})))


def test_the_saving_governor_is_one_that_follows_the_load_where_there_is_one(tmp_path):
    host = governed(tmp_path, "performance")
    offered = files(host, "scaling_available_governors")
    assert governor.chosen("saving", host) == "powersave"
    for file in offered:
        file.write_text("powersave ondemand performance\n")
    assert governor.chosen("saving", host) == "ondemand"
    offered[1].write_text("userspace\n")
    assert "no frequency governor ondemand or" in governor.why_not("saving", host)


SMALL = Path(__file__).with_name("small.yaml").read_text(encoding="utf-8")


def with_neighbour(tmp_path: Path, aggressor: str) -> Path:
    file = tmp_path / "theirs.yaml"
    file.write_text(SMALL.replace("ring: {stressor: integer}", f"ring: {aggressor}"))
    return file


@pytest.mark.long
def test_commands_of_a_study_are_shown_and_not_run_unless_they_are_allowed(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    made = tmp_path / "made"
    file = with_neighbour(tmp_path, f'{{command: [touch, "{made}"], sandbox: {{backend: $backend}}}}')
    options = ["--out", str(tmp_path / "out"), "--work-dir", str(tmp_path)]
    said = CliRunner().invoke(app, ["study", str(file), *options])
    assert isinstance(said.exception, UsageError)
    assert f"part cache-process, aggressors.ring.command, on this host: touch {made}" in str(said.exception)
    assert "again with --allow-commands" in str(said.exception)
    assert not made.exists()
    assert not (tmp_path / "out").exists()


OWN = "{command: [./bench], files: [{from: own/bench.sh, to: bench}, own/data], version: [./bench, -V]}"


def with_files(tmp_path):
    """A study whose neighbour is a program of the user's, and the folder with its files."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "bench.sh").write_text('#!/bin/sh\n[ "$1" = -V ] && echo own 1.2 && exit\ncat data\nexec sleep 60\n')
    (own / "bench.sh").chmod(0o755)
    (own / "data").write_text("data\n")
    return with_neighbour(tmp_path, OWN), own


@pytest.mark.long
def test_own_files_of_a_study_are_shown_with_its_commands_and_all_missing_ones_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    file, own = with_files(tmp_path)
    said = CliRunner().invoke(app, ["study", str(file), "--out", str(tmp_path / "out"), "--work-dir", str(tmp_path)])
    assert isinstance(said.exception, UsageError)
    shown = f"part cache, aggressors.ring.files[0], on this host: {own / 'bench.sh'} as bench ("
    assert shown in str(said.exception)
    for name in ("bench.sh", "data"):
        (own / name).unlink()
    said = CliRunner().invoke(app, ["study", str(file), "--dry-run"])
    assert isinstance(said.exception, UsageError)
    keys = [problem.key for problem in said.exception.problems]
    assert keys == ["aggressors.ring.files[0]", "aggressors.ring.files[1]"]
    assert all("No such file" in problem.message for problem in said.exception.problems)


@pytest.mark.host
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the neighbour needs a CPU other than the victim's")
def test_a_part_gets_the_users_own_files_and_a_study_goes_on_with_the_same_ones_only(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    file, own = with_files(tmp_path)
    options = ["--out", str(tmp_path / "out"), "--work-dir", str(tmp_path), "--allow-commands"]
    said = CliRunner().invoke(app, ["study", str(file), *options], catch_exceptions=False)
    assert said.exit_code in (0, 5), said.output
    run = RunDirectory.open(tmp_path / "out" / "runs" / "cache")
    _, data = run.plan.scenario.aggressors["ring"].files
    assert data.sha256 == hashlib.sha256(b"data\n").hexdigest()
    assert "own 1.2" in (run.path / "events.jsonl").read_text()

    (own / "data").write_text("other\n")
    study = read(str(file))
    directory = StudyDirectory.open(tmp_path / "out")
    jobs = _jobs(study, directory.request, PLACE)
    with pytest.raises(UsageError, match="has changed"):
        _check_files(study, directory, list(jobs))


@pytest.mark.long
def test_commands_are_requested_about_again_when_a_study_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    file = with_neighbour(tmp_path, "{command: [touch, here]}")
    requested = StudyRequest(backends=("process",))
    directory = StudyDirectory.create(tmp_path / "out", file.read_bytes(), requested, {})
    said = CliRunner().invoke(app, ["study", "--resume", str(directory.path), "--work-dir", str(tmp_path)])
    assert isinstance(said.exception, UsageError)
    assert "aggressors.ring.command, on this host: touch here" in str(said.exception)


@pytest.mark.long
@pytest.mark.parametrize(
    ("aggressor", "key", "what"),
    [
        ("{stressor: integer, sandbox: {backend: ssh}}", "sandbox.host", "the ssh backend needs to know which machine"),
        ("{load: http://127.0.0.1:1/}", "load", "cannot have virtual users"),
    ],
)
def test_what_a_study_cannot_measure_is_refused_by_place_also_on_a_dry_run(tmp_path, aggressor, key, what):
    # Without $backend the study varies the backend of every sandbox, also of this one.
    file = with_neighbour(tmp_path, aggressor)
    own = "{probe: cache, params: {level: L2}, sandbox: {backend: $backend}}"
    file.write_text(file.read_text().replace("{probe: cache, params: {level: L2}}", own))
    said = CliRunner().invoke(app, ["study", str(file), "--dry-run"])
    assert isinstance(said.exception, UsageError), said.output
    (problem,) = said.exception.problems
    assert (problem.file, problem.key) == ("small, part cache-process", f"aggressors.ring.{key}")
    assert what in problem.message
    assert problem.remedy


@pytest.mark.host
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the neighbour needs a CPU other than the victim's")
def test_a_study_is_measured_as_a_run_a_part_and_can_be_reported_again(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    options = ["--out", str(tmp_path / "out"), "--work-dir", str(tmp_path)]
    said = CliRunner().invoke(app, ["study", str(file), *options], catch_exceptions=False)
    assert said.exit_code in (0, 5), said.output
    directory = StudyDirectory.open(tmp_path / "out")
    report = studies.report(directory)
    # On a busy host few blocks may not tell a rate from 0, which is then no point; but every cell is there.
    assert {row["treatment"] for row in report.rows} == {"null", "ring@1"}
    assert (tmp_path / "out" / "runs" / "cache" / "plan.json").is_file()
    assert "board" not in report.figures
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Every cell, by backend" in page
    again = CliRunner().invoke(app, ["study", "--resume", str(tmp_path / "out")], catch_exceptions=False)
    assert again.exit_code == said.exit_code
    assert [p.name for p in (tmp_path / "out" / "runs").iterdir()] == ["cache"]


KINDS = {
    "integer",
    "RAM",
    "float",
    "disk",
    "sequential write",
    "sequential read",
    "random read",
    "write-through",
}


@pytest.mark.long
def test_the_long_form_has_every_benchmark_beside_every_load_on_one_core_and_on_all_set_on_either_sandbox():
    jobs = list(_jobs(read("hyperv-quality"), StudyRequest(length="long"), PLACE))
    tested = [job for job in jobs if job.part == "tested"]
    cores = {"one", "all"}
    assert {(job.values["benchmark"], job.values["cores"]) for job in tested} == {(k, c) for k in KINDS for c in cores}
    assert all(set(job.scenario.aggressors) == {"integer", "float", "ram", "disk"} for job in tested)
    loading = [job for job in jobs if job.part == "loading"]
    result = {(job.values["benchmark"], job.values["load"], job.values["cores"]) for job in loading}
    assert result == {(k, load, c) for k in KINDS for load in ("integer", "RAM", "float", "disk") for c in cores}
    for job in (*tested, *loading):
        (levels,) = job.scenario.factors.values()
        assert (levels[0], levels[-1]) == (0.05, 1)
    energy = {(job.values["benchmark"], job.values["cores"]) for job in jobs if job.part == "energy"}
    assert {(kind, core) for kind in ("integer", "float", "RAM") for core in cores} < energy


def test_the_short_form_sets_the_loading_sandbox_beside_its_own_kind_and_others():
    jobs = _jobs(read("hyperv-quality"), StudyRequest(parts=("loading",)), PLACE)
    result = {(job.values["benchmark"], job.values["load"]) for job in jobs}
    assert result == {(kind, load) for kind in ("integer", "RAM", "disk") for load in ("integer", "RAM", "disk")}


IOZONE = {
    "buffered write": ("disk-write", "sequential", "none"),
    "buffered random write": ("disk-rewrite", "random", "none"),
    "buffered read": ("disk-read", "sequential", "none"),
    "buffered random read": ("disk-read", "random", "none"),
    "write-through": ("disk-write", "sequential", "dsync"),
    "random write-through": ("disk-rewrite", "random", "dsync"),
    "direct write": ("disk-direct-write", "sequential", "none"),
    "direct random write": ("disk-direct-write", "random", "none"),
    "direct read": ("disk-direct-read", "sequential", "none"),
    "direct random read": ("disk-direct-read", "random", "none"),
}


def test_the_operations_of_iozone_are_measured_if_they_are_requested_by_name():
    study = read("hyperv-quality")
    result = {}
    for job in _jobs(study, StudyRequest(parts=("storage",)), PLACE):
        tested = job.scenario.victims["tested"]
        params = {"order": "sequential", "sync": "none"} | dict(tested.params)
        result[job.values["benchmark"]] = (tested.probe, params["order"], params["sync"])
    assert result.items() >= IOZONE.items()
    for length in ("short", "long"):
        assert not any(job.part == "storage" for job in _jobs(study, StudyRequest(length=length), PLACE))


def test_a_part_is_measured_for_each_with_each_of_across():
    text = SMALL.replace(
        "    budget: {short: 3s}\n",
        "    budget: {short: 3s}\n    each: [{level: L1}, {level: L2}]\n    across: [{what: integer}, {what: float}]\n",
    ).replace("level: L2}}}", "level: $level}}}")
    study = Isolation().read(text.replace("{stressor: integer}", "{stressor: $what}").encode(), "a.yaml")
    jobs = list(_jobs(study, StudyRequest(), PLACE))
    assert [job.name for job in jobs] == ["cache-L1-integer", "cache-L1-float", "cache-L2-integer", "cache-L2-float"]
    assert [job.scenario.aggressors["ring"].stressor for job in jobs] == ["integer", "float"] * 2
