"""What tests of guards share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path))
