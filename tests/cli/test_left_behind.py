"""What could not be removed or restored is told, whatever else goes well."""

import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from partywall.cli import execution, leftovers
from partywall.cli.live import Live
from partywall.core.capability import Options
from partywall.errors import Exit
from partywall.events import Broken
from partywall.sandbox.libvirt.leftovers import FILE
from partywall.testing import fake_host

URI = "qemu+unix:///system?socket=/no/such/socket"
DEAD = {"pid": 999_999_999, "start_ticks": 0, "work": "/nowhere"}


def test_a_domain_that_a_dead_run_left_held_is_reported_by_the_next_start(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    folder = tmp_path / "state" / "dead"
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o700)
    (folder / "owner.json").write_text(json.dumps(DEAD))
    (folder / FILE).write_text(json.dumps([{"uri": URI, "domain": "web1", "before": None}]))
    leftovers.clean_up()
    said = capsys.readouterr().err
    assert said.startswith(f"partywall: warning: could not be removed or restored: domain web1 of {URI} (")
    assert "partywall reap" in said
    assert folder.exists()


@pytest.mark.parametrize(("left", "ends"), [("", Exit.HOLDS), ("domain web1", Exit.FAILED)])
def test_a_run_that_could_not_put_a_domain_back_shows_its_report_and_fails(monkeypatch, capsys, left, ends):
    reported = []
    monkeypatch.setattr(
        execution, "show_record", lambda *_, exit_of, **__: reported.append(True) or exit_of(Exit.HOLDS)
    )

    def measure(emit):
        if left:
            emit(Broken(f"could not be removed or restored: {left}"))
        return SimpleNamespace()

    console = Console()
    outcome = execution.carry_out(measure, Options(fake_host()), Live(console), console)
    assert (outcome, reported) == (ends, [True])
    assert ("domain web1" in capsys.readouterr().err) is bool(left)
