"""A host as one value, for planning: read once, and passed to everything that depends on the host.

Changes nothing and stores nothing. Settings applied during a measurement are elsewhere.
"""

from partywall.host.host import Host, cpus_of
from partywall.host.mounts import Mount, mounts
from partywall.host.nodes import MemoryNode, memory_nodes
from partywall.host.packages import install
from partywall.host.ports import free_port

__all__ = ["Host", "MemoryNode", "Mount", "cpus_of", "free_port", "install", "memory_nodes", "mounts"]
