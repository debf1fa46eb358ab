"""Checks before a run: whether a scenario can run on a host, and with which accelerators.

Leaves nothing behind but root images, and the stored result of whether KVM can start a guest.
"""

from partywall.preflight.elsewhere import machine_facts, measured_facts, other_machines, victims_machines
from partywall.preflight.guests import build_roots, roots_to_build, tries_kvm, try_kvm, with_accelerators
from partywall.preflight.host import check_folder, check_host
from partywall.preflight.own_files import check_files, with_files
from partywall.preflight.requirements import backends, check_commands, commands, refuse_commands, workloads
from partywall.preflight.room import (
    check_disk,
    check_guest_memory,
    check_kernels,
    check_node_memory,
    guest_memory,
    memory_needed,
    with_rings,
    with_room,
)
from partywall.preflight.unprivileged import check_containers, check_guests, lacking_for_containers

__all__ = [
    "backends",
    "build_roots",
    "check_commands",
    "check_containers",
    "check_disk",
    "check_files",
    "check_folder",
    "check_guest_memory",
    "check_guests",
    "check_host",
    "check_kernels",
    "check_node_memory",
    "commands",
    "guest_memory",
    "lacking_for_containers",
    "machine_facts",
    "measured_facts",
    "memory_needed",
    "other_machines",
    "refuse_commands",
    "roots_to_build",
    "tries_kvm",
    "try_kvm",
    "victims_machines",
    "with_accelerators",
    "with_files",
    "with_rings",
    "with_room",
    "workloads",
]
