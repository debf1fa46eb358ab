"""Test doubles: hosts composed from a few numbers, hosts recorded file by file, and hosts with simulated neighbours."""

from partywall.testing.hosts import Disk, fake_host, recorded
from partywall.testing.simulated import SimulatedHost, VirtualClock
from partywall.testing.trees import Entry, Tree, read

__all__ = ["Disk", "Entry", "SimulatedHost", "Tree", "VirtualClock", "fake_host", "read", "recorded"]
