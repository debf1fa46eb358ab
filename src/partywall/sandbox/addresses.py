"""Names of other machines, which become words of other programs' command lines."""

from __future__ import annotations

from partywall.errors import Problem, UsageError

ADDRESSES = {"host": "admin@web1", "uri": "qemu:///system", "domain": "web1"}
"""The keys of a sandbox that name a machine, a daemon or a domain, with an example of each."""


def wrong_address(text: str) -> bool:
    """True for what no program would take as the name of a machine: nothing, an option, or several words."""
    return not text or text.startswith("-") or text.split() != [text]


def check_ssh_host(host: str, option: str) -> None:
    """Raises UsageError if the value of an option cannot be the name of a machine for ssh."""
    remedy = "give a Host of ~/.ssh/config, user@name or ssh://user@name:port"
    if wrong_address(host) or host.startswith("libvirt:") or ("://" in host and not host.startswith("ssh://")):
        raise UsageError(Problem(f"{host[:200]!r} is not a host for ssh", remedy, key=option))
