"""A host as planning sees it: one value that is read once and passed to all that asks what the host is or has.

Nothing is changed here, and nothing is remembered. What runs on the host while something is measured is not here.
"""

from partywall.host.host import Host, cpus_of
from partywall.host.mounts import Mount, mounts
from partywall.host.packages import install

__all__ = ["Host", "Mount", "cpus_of", "install", "mounts"]
