"""What tests of more than one part need of the host."""

from __future__ import annotations

import pytest
from hypothesis import settings

from partywall import pipeline
from partywall.sandbox.lab import lacking

# Hypothesis's deadline of 200 ms is missed on a busy machine, whatever the code.
settings.register_profile("partywall", deadline=None)
settings.load_profile("partywall")


def need_ebpf() -> None:
    if any(missing["what"] == "eBPF programs" for missing in pipeline.host_facts()["missing"]):
        pytest.skip("an agent built with clang, for eBPF programs")


@pytest.fixture(scope="session")
def ebpf() -> None:
    need_ebpf()


@pytest.fixture(scope="session")
def guarded_lab() -> None:
    if why := lacking():
        pytest.skip(why)
    need_ebpf()
