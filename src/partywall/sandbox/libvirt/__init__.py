"""Sandboxes that are domains of libvirt: made by us with QEMU or Xen, or the user's own, tuned and put back.

The library is an extra (`pip install libvirt-python`) and is imported when a domain is wanted.
"""

from partywall.sandbox.libvirt.backend import Libvirt
from partywall.sandbox.libvirt.library import reachable, survey, version
from partywall.sandbox.libvirt.owned import unusable

__all__ = ["Libvirt", "reachable", "survey", "unusable", "version"]
