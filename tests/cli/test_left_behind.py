"""What could not be removed or put back is told, whatever else goes well."""

import importlib
import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from partywall import pipeline, preflight
from partywall.cli import leftovers
from partywall.errors import Exit
from partywall.sandbox.libvirt.leftovers import FILE
from partywall.testing import fake_host

URI = "qemu+unix:///system?socket=/no/such/socket"
DEAD = {"pid": 999_999_999, "start_ticks": 0, "work": "/nowhere"}


def test_a_domain_that_a_dead_run_left_held_is_told_by_the_next_start(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    folder = tmp_path / "state" / "dead"
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o700)
    (folder / "owner.json").write_text(json.dumps(DEAD))
    (folder / FILE).write_text(json.dumps([{"uri": URI, "domain": "web1", "before": None}]))
    leftovers.clean_up()
    said = capsys.readouterr().err
    assert said.startswith(f"partywall: warning: could not be removed or put back: domain web1 of {URI} (")
    assert "partywall reap" in said
    assert folder.exists()


@pytest.mark.parametrize(("left", "ends"), [((), Exit.HOLDS), (("domain web1",), Exit.FAILED)])
def test_a_run_that_could_not_put_a_domain_back_shows_its_report_and_fails(monkeypatch, capsys, tmp_path, left, ends):
    app = importlib.import_module("partywall.cli.run")
    for check in ("check_commands", "check_host", "check_guest_memory", "check_folder", "check_disk"):
        monkeypatch.setattr(preflight, check, lambda *_, **__: None)
    monkeypatch.setattr(pipeline, "measure", lambda *_: left)
    reported = []
    monkeypatch.setattr(app, "show_record", lambda *_: reported.append(True) or Exit.HOLDS)
    plan = SimpleNamespace(scenario=SimpleNamespace(budget=10**9), estimate_ns=10**9)
    directory = SimpleNamespace(plan=plan, path=tmp_path)
    outcome = app._measure_and_report(directory, fake_host(), Console(), tmp_path, allow_commands=False)
    assert (outcome, reported) == (ends, [True])
    assert ("domain web1" in capsys.readouterr().err) is bool(left)
