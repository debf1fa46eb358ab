"""The engine for hosts of an Ansible inventory: the user's own `ssh`, with what the inventory says of each host."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from partywall.fleet.engines.calling import TIMEOUT_S, Calling
from partywall.fleet.inventory import Place
from partywall.sandbox.ssh.connection import argv as ssh_argv
from partywall.sandbox.ssh.connection import explained

FAILED = 255
"""The exit code of ssh itself."""


def options(variables: Mapping[str, str]) -> list[str]:
    """Options of ssh for the variables of a host, as Ansible's own connection passes them."""
    words = []
    for name, option in (("port", "Port"), ("user", "User"), ("private_key_file", "IdentityFile")):
        value = variables.get(f"ansible_ssh_{name}") or variables.get(f"ansible_{name}")
        words += ["-o", f"{option}={value}"] if value else []
    for name in ("ansible_ssh_common_args", "ansible_ssh_extra_args"):
        words += shlex.split(variables.get(name, ""))
    return words


class Ssh(Calling):
    """Hosts behind ssh."""

    def argv(
        self, place: Place, words: Sequence[str], *, begins: bool = False, seconds: float = TIMEOUT_S
    ) -> list[str]:
        del begins, seconds
        return ssh_argv(_destination(place), shlex.join(words), options(place.variables))

    def explained(self, place: Place, said: str, code: int) -> str:
        if code == FAILED:
            return explained(said, _destination(place))
        return super().explained(place, said, code)


def _destination(place: Place) -> str:
    return place.variables.get("ansible_host") or place.variables.get("ansible_ssh_host") or place.name
