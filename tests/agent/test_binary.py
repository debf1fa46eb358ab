"""Where the agent's executable is looked for, and what users are told who have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from partywall.agent import binary
from partywall.errors import CapabilityError

ROOT = Path(__file__).parents[2]


def test_in_a_clone_the_remedy_is_to_build():
    assert "make build" in binary.remedy(ROOT / "src" / "partywall")


def test_an_installed_user_is_not_sent_to_a_makefile(tmp_path: Path):
    remedy = binary.remedy(tmp_path / "lib" / "python3.11" / "site-packages" / "partywall")
    assert "make" not in remedy
    assert "pip install --force-reinstall" in remedy


def test_an_agent_that_is_named_and_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PARTYWALL_AGENT", str(tmp_path / "gone"))
    with pytest.raises(CapabilityError, match=r"\$PARTYWALL_AGENT.*gone, cannot be executed; .*PARTYWALL_AGENT"):
        binary.find()
