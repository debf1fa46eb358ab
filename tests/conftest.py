"""What tests of more than one part need of the host."""

from __future__ import annotations

import shutil

import pytest
from hypothesis import settings

from partywall.core import here
from partywall.sandbox.lab import lacking
from tests.skips import pytest_sessionfinish, pytest_terminal_summary  # noqa: F401 - hooks

# Hypothesis's deadline of 200 ms is missed on a busy machine, whatever the code.
settings.register_profile("partywall", deadline=None)
settings.load_profile("partywall")


def need_ebpf() -> None:
    if any(missing["what"] == "eBPF programs" for missing in here.host_facts()["missing"]):
        pytest.skip("an agent built with clang, for eBPF programs")


@pytest.fixture(scope="session")
def ebpf() -> None:
    need_ebpf()


@pytest.fixture(scope="session")
def guarded_lab() -> None:
    if why := lacking():
        pytest.skip(why)
    need_ebpf()


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium, whose logs have messages and requests."""
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed (packages chromium, chromium-driver)")
    options = selenium.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = selenium.Chrome(options=options, service=selenium.ChromeService(driver))
    yield opened
    opened.quit()
