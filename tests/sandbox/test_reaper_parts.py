"""Clean-up that cannot remove something says so, and keeps the notes that the next one needs."""

import contextlib

import pytest

from partywall.host.label import Label
from partywall.sandbox import reaper


@pytest.fixture(autouse=True)
def _runtime(tmp_path, monkeypatch):
    """An OCI runtime that fails to delete the container `stuck`."""
    program = tmp_path / "crun-stub"
    program.write_text('#!/bin/sh\nfor last; do :; done\n[ "$last" != stuck ] || { echo "device busy" >&2; exit 1; }\n')
    program.chmod(0o755)
    monkeypatch.setenv("PARTYWALL_RUNTIME", str(program))
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))


def test_a_container_that_cannot_be_deleted_is_left_and_its_notes_are_kept(tmp_path):
    label = Label.create("reaped", tmp_path / "work")
    for name in ("stuck", "gone"):
        (label.state / "runtime" / name).mkdir(parents=True)
    try:
        reaped = reaper.clean(label)
        assert "container gone" in reaped.removed
        assert not any("stuck" in removed for removed in reaped.removed)
        assert any("container stuck" in left and "device busy" in left for left in reaped.left)
        assert (label.state / "runtime").is_dir()
    finally:
        with contextlib.suppress(OSError):
            reaper.clean(label, forget=True)
    assert not label.state.exists()
