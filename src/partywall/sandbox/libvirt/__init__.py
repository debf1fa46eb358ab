"""Sandboxes that are libvirt domains: created by Partywall with QEMU or Xen, or the user's own, changed and restored.

The library is an optional dependency (`pip install libvirt-python`), imported when a domain is needed.
"""

from partywall.sandbox.libvirt.backend import Libvirt
from partywall.sandbox.libvirt.library import reachable, survey, version
from partywall.sandbox.libvirt.owned import unusable

__all__ = ["Libvirt", "reachable", "survey", "unusable", "version"]
