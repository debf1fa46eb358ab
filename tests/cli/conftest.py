from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from partywall.agent import binary
from partywall.errors import CapabilityError
from tests.cli import corpus


@pytest.fixture(scope="session")
def ground() -> Iterator[Path]:
    """A folder on a real disk that another user may enter; disk kernels and that user need one."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="cli-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="session")
def finished(ground: Path) -> Path:
    """A run that was measured to its end."""
    try:
        binary.find()
    except CapabilityError as error:
        pytest.skip(str(error))
    return corpus.finished_run(ground / "finished")


@pytest.fixture
def folder(ground: Path, finished: Path, request: pytest.FixtureRequest) -> Path:
    """A folder as the cases of the corpus have, unspoilt."""
    made = Path(tempfile.mkdtemp(dir=ground, prefix=request.node.name[:30].replace("[", "-")))
    corpus.prepare(made, corpus.Case("good", (), 0, ()), finished)
    return made
