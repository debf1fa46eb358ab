"""What tests of a guard in a lab need of the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from partywall import pipeline
from partywall.sandbox.lab import lacking


@pytest.fixture(scope="session")
def guarded_lab() -> None:
    if why := lacking():
        pytest.skip(why)
    if any(missing["what"] == "eBPF programs" for missing in pipeline.host_facts()["missing"]):
        pytest.skip("an agent built with clang, for eBPF programs")


@pytest.fixture
def own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path))
