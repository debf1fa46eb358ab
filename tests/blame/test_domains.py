"""Levers on libvirt's domains. The tuner is a stub that records what it is asked; no libvirt daemon runs here."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from partywall.blame.measure.domains import Domain
from partywall.blame.measure.files import Files
from partywall.blame.measure.owners import Kind, Refused
from partywall.errors import TrialError

BEFORE = {"vcpu_period": 100_000, "vcpu_quota": -1}
DISK = {"read_bytes_sec": 0, "write_bytes_sec": 0, "read_iops_sec": 100, "write_iops_sec": 0}


class Recorded:
    def __init__(self) -> None:
        self.asked: list[dict[str, int]] = []

    def schedule(self, parameters: Mapping[str, int]) -> None:
        self.asked.append(dict(parameters))

    throttle = schedule


class Refuses(Recorded):
    def schedule(self, parameters: Mapping[str, int]) -> None:
        raise TrialError(f"web: its CPU limit cannot be set: {parameters}")


def domain(tuner: Recorded, kind: Kind = Kind.CPU) -> Domain:
    files = Files(kind, Path("/g"), {})
    return Domain("4f2", files, tuner, DISK if kind is Kind.DISK else BEFORE, vcpus=2, disk="vda")


def test_the_virtual_cpus_of_a_domain_share_its_limit_and_get_the_old_one_back():
    tuner = Recorded()
    one = domain(tuner)
    one.hold(0.7)
    one.release()
    assert tuner.asked == [{"vcpu_period": 10_000, "vcpu_quota": 3_500}, BEFORE]


def test_a_domains_disk_keeps_its_limits_of_requests():
    tuner = Recorded()
    one = domain(tuner, Kind.DISK)
    one.hold(5e6)
    one.release()
    assert tuner.asked == [DISK | {"read_bytes_sec": 5_000_000, "write_bytes_sec": 5_000_000}, DISK]


def test_a_watchdog_undoes_it_with_virsh():
    (cpu,), (disk,) = domain(Recorded()).undo.commands, domain(Recorded(), Kind.DISK).undo.commands
    assert " ".join(cpu.argv).endswith("schedinfo 4f2 --live vcpu_period=100000 vcpu_quota=-1")
    assert "blkdeviotune 4f2 vda --live --read-bytes-sec 0" in " ".join(disk.argv)
    assert cpu.where == "/g"


def test_a_daemon_that_refuses_says_so():
    with pytest.raises(Refused, match="libvirt refuses: web: its CPU limit cannot be set"):
        domain(Refuses()).hold(0.5)
