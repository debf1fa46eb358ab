"""Idle CPUs that poll: asked of the kernel while the block runs, and refused by name where it cannot be had."""

import pytest

from partywall.host.settings import idle
from partywall.testing import fake_host


@pytest.fixture
def host(tmp_path):
    driver = tmp_path / "sys/devices/system/cpu/cpuidle/current_driver"
    driver.parent.mkdir(parents=True)
    driver.write_text("intel_idle\n")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/cpu_dma_latency").touch()
    return fake_host(root=tmp_path)


def test_the_bound_is_zero_while_the_block_runs(tmp_path):
    device = tmp_path / "cpu_dma_latency"
    with idle.polled(device):
        assert device.read_bytes() == bytes(4)


def test_a_host_that_can_has_nothing_against_it(host):
    assert not idle.why_not(host)


@pytest.mark.parametrize("content", ["none\n", "", None])
def test_a_kernel_without_idle_states_would_not_heed_it(host, content):
    driver = host.path(idle.DRIVER)
    driver.unlink() if content is None else driver.write_text(content)
    assert "cpuidle" in idle.why_not(host)


def test_a_device_that_is_not_there_is_named(host):
    host.path(idle.DEVICE).unlink()
    assert str(idle.DEVICE) in idle.why_not(host)


def test_a_device_that_only_root_may_write_is_named(host):
    assert "needs root" in idle.why_not(fake_host(root=host.root, access=lambda _path, _mode: False))
