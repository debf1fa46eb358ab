"""`partywall study`: what is there, what would be done, and what is no study."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from partywall import study as studies
from partywall.cli.app import app
from partywall.core import here
from partywall.errors import CapabilityError, Exit, UsageError
from partywall.study import papers
from partywall.study.document import StudyRequest
from partywall.study.paper import Paper
from partywall.study.record import StudyDirectory
from partywall.testing import fake_host


def read(name):
    file = studies.find(name)
    return studies.kind_of(file), studies.kind_of(file).read(file.read_bytes(), str(file))


def test_every_study_that_ships_can_be_read_and_is_listed_with_what_it_is():
    said = CliRunner().invoke(app, ["study"], catch_exceptions=False).output
    assert studies.names()
    for name in studies.names():
        _, study = read(name)
        assert study.description
        assert name in said


@pytest.mark.long
@pytest.mark.parametrize("name", studies.names())
@pytest.mark.parametrize("length", ["short", "long"])
def test_a_study_says_what_it_would_measure_and_for_how_long(name, length):
    kind, study = read(name)
    outline = kind.outline(study, StudyRequest(length=length), here.this_host())
    assert outline.lines
    assert outline.seconds > 60
    assert outline.seconds < 3600 or length == "long"
    # The outline comes first, whatever this host lacks.
    said = CliRunner().invoke(app, ["study", name, f"--{length}", "--dry-run"]).output
    assert "form: about" in said
    assert outline.lines[0][:20] in said.replace("\n", " ")


@pytest.mark.parametrize("backend", ["container", "qemu"])
def test_a_dry_run_checks_the_host_as_the_study_itself_does(backend):
    bare = fake_host(which=lambda _: None)
    arguments = ["study", "papers/vits", "--backend", backend, "--only", "cache*"]
    dry = CliRunner().invoke(app, [*arguments, "--dry-run"], obj=lambda: bare)
    wet = CliRunner().invoke(app, arguments, obj=lambda: bare)
    assert isinstance(dry.exception, CapabilityError)
    assert dry.exception.exit is Exit.CAPABILITY
    assert str(dry.exception) == str(wet.exception)
    assert "form: about" in dry.output
    assert "This host can run the study" not in dry.output


def test_every_paper_ships_with_numbers_of_a_kind_that_its_study_names():
    for name in papers.names():
        assert isinstance(papers.load(name), Paper)


@pytest.mark.parametrize(
    ("text", "said"),
    [("partywall: 1\n", "this is a scenario"), ("", "begin with one of"), ("name: a\n", "begin with one of")],
)
def test_what_is_no_study_is_reported(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=said):
        studies.kind_of(file)


def test_a_study_that_is_not_there_is_reported_with_what_is():
    with pytest.raises(UsageError, match=r"there is no study 'papers/dba'.*did you mean papers/dba-vm"):
        studies.find("papers/dba")


def test_a_folder_that_is_there_or_holds_no_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="exists already"):
        StudyDirectory.create(tmp_path, b"", StudyRequest(), {})
    with pytest.raises(UsageError, match="not a record of a study"):
        StudyDirectory.open(tmp_path)


def test_what_a_study_cannot_be_requested_for_is_refused_by_name():
    kind, study = read("dba-vm")
    with pytest.raises(UsageError, match="--backend: dba-vm does not support backend container"):
        kind.outline(study, StudyRequest(backends=("container",)), fake_host())


@pytest.mark.parametrize("name", ["papers/vits", "papers/vits-network"])
def test_a_form_that_a_study_lacks_is_refused_with_those_it_has(name):
    with pytest.raises(UsageError, match=r"--form: .* has no paper form.*give short or long"):
        CliRunner().invoke(app, ["study", name, "--form", "paper", "--dry-run"], catch_exceptions=False)


def test_long_and_another_form_contradict_each_other():
    with pytest.raises(UsageError, match="--long and --form paper contradict"):
        CliRunner().invoke(app, ["study", "papers/vits", "--long", "--form", "paper"], catch_exceptions=False)
