"""Doubles for tests: hosts that are made up of a few numbers, and hosts that were recorded file by file."""

from partywall.testing.hosts import Disk, fake_host, recorded
from partywall.testing.trees import Entry, Tree, read

__all__ = ["Disk", "Entry", "Tree", "fake_host", "read", "recorded"]
