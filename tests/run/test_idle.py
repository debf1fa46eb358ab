"""Idle CPUs that poll: asked of the kernel while the block runs, and refused by name where it cannot be had."""

import pytest

from partywall.run import idle


@pytest.fixture
def driver(tmp_path):
    file = tmp_path / "current_driver"
    file.write_text("intel_idle\n")
    return file


def test_the_bound_is_zero_while_the_block_runs(tmp_path):
    device = tmp_path / "cpu_dma_latency"
    with idle.polled(device):
        assert device.read_bytes() == bytes(4)


def test_a_host_that_can_has_nothing_against_it(tmp_path, driver):
    device = tmp_path / "cpu_dma_latency"
    device.touch()
    assert not idle.why_not(device, driver)


@pytest.mark.parametrize("content", ["none\n", None])
def test_a_kernel_without_idle_states_would_not_heed_it(tmp_path, driver, content):
    driver.unlink() if content is None else driver.write_text(content)
    assert "cpuidle" in idle.why_not(tmp_path / "cpu_dma_latency", driver)


def test_a_device_that_is_not_there_is_named(tmp_path, driver):
    device = tmp_path / "cpu_dma_latency"
    assert str(device) in idle.why_not(device, driver)
