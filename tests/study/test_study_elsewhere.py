"""Studies of isolation on other machines: which sandboxes are where, what is refused, and what is planned.

tests/sandbox/test_ssh.py measures one.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from partywall import study as studies
from partywall.cli.app import app
from partywall.core.capability import Options
from partywall.errors import CapabilityError, Exit, UsageError
from partywall.run.document import factors
from partywall.run.plan.requirements import measured_facts
from partywall.sandbox import elsewhere
from partywall.study.capability import Studies, StudyJob
from partywall.study.document import StudyRequest
from partywall.study.isolation.kind import Isolation, Place, Refused, _jobs, _why_not
from partywall.testing import fake_host

PLACE = Place((0, 1), polls=True)
SMALL = Path(__file__).with_name("small.yaml").read_text(encoding="utf-8")
FACTS = {
    "cpus_allowed": [0, 1, 2, 3],
    "cpu": {"model": "a made-up processor", "online": [0, 1, 2, 3]},
    "kernel": {"release": "6.1.0"},
    "memory": {"total_bytes": 1 << 33},
}


def jobs(text: str, request: StudyRequest):
    return list(_jobs(Isolation().read(text.encode(), "a.yaml"), request, PLACE))


def with_sandboxes(victim: str, aggressor: str, backends: str = "[process]") -> str:
    text = SMALL.replace("params: {level: L2}", f"params: {{level: L2}}, sandbox: {victim}")
    text = text.replace("{stressor: integer}", f"{{stressor: integer, sandbox: {aggressor}}}")
    return text.replace("backends: [process]", f"backends: {backends}")


def boxes(job):
    ((_, _, applied),) = factors.trials(job.scenario)
    (victim,), (aggressor,) = applied.victims.values(), applied.aggressors.values()
    return [(each.sandbox.backend, each.sandbox.machine) for each in (victim, aggressor)]


@pytest.fixture
def machines(monkeypatch):
    """Machines that answer, by name, with the work folder and the programs that they were asked about."""
    requested = {}

    def survey(destination, base, programs):
        requested[destination] = (base, tuple(programs))
        if destination.startswith("closed"):
            raise CapabilityError(f"{destination}, by ssh: it cannot be reached (Connection refused); check the port")
        return FACTS

    monkeypatch.setattr(elsewhere.ssh, "survey", survey)
    return requested


@pytest.mark.parametrize("backends", [(), ("ssh",)])
def test_every_sandbox_of_a_study_is_a_process_on_the_machine_that_is_requested(backends):
    study = Isolation().read(studies.find("vits").read_bytes(), "vits")
    made = list(_jobs(study, StudyRequest(on="ann@shop", backends=backends), PLACE))
    assert len(made) == len(list(_jobs(study, StudyRequest(), PLACE)))
    for job in made:
        everyone = [*job.scenario.victims.values(), *job.scenario.aggressors.values()]
        assert {(each.sandbox.backend, each.sandbox.machine) for each in everyone} == {("ssh", "ann@shop")}
    left_out = {job.part: why for job in made if (why := _why_not(job, Refused({}, {})))}
    assert left_out == {"schedulers": "the I/O scheduler can be set on this host alone, and not on ann@shop"}


def test_a_bare_process_is_one_on_that_machine_and_idle_cpus_of_this_host_do_not_poll_for_it():
    (job,) = jobs(SMALL.replace("budget:", "energy_saving: 'off'\n    budget:"), StudyRequest(on="shop"))
    assert job.scenario.idle == "sleep"
    (job,) = jobs(with_sandboxes("{backend: process}", "{cpus: same}"), StudyRequest(on="shop"))
    assert boxes(job) == [("ssh", "shop"), ("ssh", "shop")]
    assert job.scenario.aggressors["ring"].sandbox.cpus == "same"
    saving = jobs(SMALL.replace("budget:", "energy_saving: 'on'\n    budget:"), StudyRequest(on="shop"))
    assert "the processor's clock can be set on this host alone" in _why_not(saving[0], Refused({}, {}))


@pytest.mark.parametrize(
    ("victim", "aggressor", "backends", "made"),
    [
        # Without a backend of their own, sandboxes have the study's.
        ("{host: a}", "{host: b}", "[ssh]", [[("ssh", "a"), ("ssh", "b")]]),
        ("{backend: ssh, host: a}", "{backend: ssh, host: a}", "[container]", [[("ssh", "a"), ("ssh", "a")]]),
        (
            "{backend: ssh, host: a}",
            "{memory: 1GiB}",
            "[container, qemu]",
            [[("ssh", "a"), ("container", "")], [("ssh", "a"), ("qemu", "")]],
        ),
        ("{backend: process}", "{backend: ssh, host: b}", "[ssh, qemu]", [[("process", ""), ("ssh", "b")]]),
        (
            "{backend: $backend}",
            '{backend: libvirt, uri: "qemu+tcp://b/system", boot: /boot}',
            "[container]",
            [[("container", ""), ("libvirt", "qemu+tcp://b/system")]],
        ),
    ],
)
def test_a_part_may_name_the_machines_of_its_sandboxes(victim, aggressor, backends, made):
    result = jobs(with_sandboxes(victim, aggressor, backends), StudyRequest())
    assert [boxes(job) for job in result] == made


def test_a_request_for_a_machine_leaves_sandboxes_that_name_their_own():
    (job,) = jobs(with_sandboxes("{backend: ssh, host: a}", "{}"), StudyRequest(on="shop"))
    assert boxes(job) == [("ssh", "a"), ("ssh", "shop")]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"backends": ("ssh",)}, "--backend: the ssh backend needs to know which machine — add --on user@name"),
        ({"on": "a b"}, "--on: 'a b' is not a host for ssh — give a Host of ~/.ssh/config"),
        ({"on": "-oProxyCommand=x"}, "--on: '-oProxyCommand=x' is not a host for ssh"),
        ({"on": "qemu+ssh://kvm1/system"}, "--on: qemu+ssh://kvm1/system is not a host for ssh — name a machine"),
    ],
)
def test_a_wrong_machine_is_refused_with_its_option(request_, said):
    with pytest.raises(UsageError) as reported:
        jobs(SMALL, StudyRequest(**request_))
    assert str(reported.value).startswith(said)


def test_backends_that_cannot_be_on_another_machine_are_refused_all_at_once():
    with pytest.raises(UsageError) as reported:
        jobs(SMALL, StudyRequest(on="shop", backends=("container", "qemu")))
    assert [(p.key, p.message.split()[0]) for p in reported.value.problems] == [
        ("--backend", "container"),
        ("--backend", "qemu"),
    ]
    with pytest.raises(UsageError, match=r"part cache: aggressors.ring.sandbox.backend: qemu makes .* on this host"):
        jobs(with_sandboxes("{}", "{backend: qemu}"), StudyRequest(on="shop"))


def test_limits_that_processes_there_cannot_have_are_reported_once_with_all_parts():
    study = Isolation().read(studies.find("hyperv-quality").read_bytes(), "hyperv-quality")
    with pytest.raises(UsageError) as reported:
        list(_jobs(study, StudyRequest(on="shop"), PLACE))
    assert len(reported.value.problems) == len({problem.message for problem in reported.value.problems}) == 4
    for problem in reported.value.problems:
        assert "the ssh backend cannot do cpu_" in problem.message
        assert "--only, or start the study on shop itself" in problem.remedy


def test_a_dry_run_names_the_machine_and_plans_with_its_cpus(machines, tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(SMALL.replace("{stressor: integer}", "{stressor: integer, threads: $cpu_count}"))
    arguments = ["study", str(file), "--on", "shop", "--dry-run", "--work-dir", str(tmp_path)]
    said = CliRunner().invoke(app, arguments, obj=fake_host, catch_exceptions=False)
    assert said.exit_code == Exit.HOLDS
    assert "1 part in ssh on shop" in said.output
    assert "shop: 4 CPUs (a made-up processor), Linux 6.1.0" in said.output
    assert "shop can run the study. Nothing was measured." in said.output
    assert machines == {"shop": (str(tmp_path), ())}
    job = StudyJob.read(str(file), StudyRequest(on="shop"))
    host = fake_host().with_machines({"shop": FACTS})
    (scenario,) = job.kind.scenarios(job.wanted, job.request, host)
    assert scenario.aggressors["ring"].threads == 4


@pytest.mark.parametrize("dry", [True, False])
def test_machines_that_cannot_be_used_are_reported_all_at_once_and_nothing_is_made(machines, tmp_path, dry):
    file, out = tmp_path / "small.yaml", tmp_path / "out"
    file.write_text(with_sandboxes("{backend: ssh, host: closed1}", "{backend: ssh, host: closed2}"))
    arguments = ["study", str(file), "--out", str(out), "--work-dir", str(tmp_path), *(["--dry-run"] if dry else [])]
    said = CliRunner().invoke(app, arguments, obj=fake_host)
    assert isinstance(said.exception, CapabilityError)
    assert [problem.message.partition(",")[0] for problem in said.exception.problems] == ["closed1", "closed2"]
    assert set(machines) == {"closed1", "closed2"}
    assert not out.exists()


@pytest.mark.parametrize("name", [n for n in studies.names() if n not in ("papers/vits", "papers/hyperv-quality")])
def test_other_studies_are_refused_on_another_machine_by_every_way_to_start_them(name):
    job, options = StudyJob.read(name, StudyRequest(on="shop")), Options(fake_host())
    for start in (Studies().outline, Studies().check, lambda *given: Studies().measure(*given, lambda _event: None)):
        with pytest.raises(UsageError, match=r"--on: .* on the host that it is started on — install .* on shop"):
            start(job, options)


def test_the_facts_of_a_record_are_those_of_the_machine_with_the_victims():
    here = {"cpus_allowed": [0], "machines": {"a": FACTS, "b": FACTS | {"kernel": {"release": "5.0"}}}}

    def measured(victim, aggressor, backends="[process]"):
        scenarios = [job.scenario for job in jobs(with_sandboxes(victim, aggressor, backends), StudyRequest())]
        return measured_facts(scenarios, here)

    on_a, on_b = "{backend: ssh, host: a}", "{backend: ssh, host: b}"
    assert measured("{}", on_a) == here
    assert measured(on_a, on_b) == FACTS | {"machines": {"b": here["machines"]["b"]}}
