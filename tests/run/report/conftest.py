"""One small run for all tests: building it takes longer than most of them."""

import pytest

from partywall.run.values.evidence import Evidence
from partywall.run.values.finding import Findings
from tests.run.report import synthetic


@pytest.fixture(scope="session")
def run() -> tuple[Findings, Evidence]:
    return synthetic.small()


@pytest.fixture(scope="session")
def emulated_run() -> tuple[Findings, Evidence]:
    return synthetic.small(emulated=True, blocks=8)
