from __future__ import annotations

from pathlib import Path

import pytest

from partywall.agent.catalogue import Catalogue


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    """A few kernels in the form the agent prints them, fixed so that these tests do not change with the agent."""
    return Catalogue.from_json((Path(__file__).parent / "kernels.json").read_text("utf-8"))
