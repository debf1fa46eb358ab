from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """State and cache of Partywall itself: those of the machine that the tests run on are not looked at."""
    folder = tmp_path_factory.mktemp("own")
    monkeypatch.setenv("PARTYWALL_STATE", str(folder / "state"))
    monkeypatch.setenv("PARTYWALL_CACHE", str(folder / "cache"))
    monkeypatch.delenv("PARTYWALL_RUNTIME", raising=False)
    return folder
