"""Machines that options name, such as `--generator` and `--machine`: for ssh, or a libvirt domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partywall.errors import Problem, UsageError

if TYPE_CHECKING:
    from partywall.load.document import Generator

LIBVIRT = "libvirt:"
FORMS = "a Host of ~/.ssh/config, user@name, or libvirt:DOMAIN[@URI] for your own libvirt domain"


def generator(text: str, option: str) -> Generator:
    """The machine of a load generator: HOST, or libvirt:DOMAIN, or libvirt:DOMAIN@URI. UsageError if it is none."""
    from partywall.load.check import wrong_generator
    from partywall.load.document import Generator
    from partywall.sandbox.addresses import check_ssh_host

    if not text.startswith(LIBVIRT):
        check_ssh_host(text, option)
        return Generator(host=text)
    domain, given, uri = text.removeprefix(LIBVIRT).partition("@")
    there = Generator(domain=domain, uri=uri if given else None)
    if wrong := [
        Problem(f"{text[:200]!r}: {each.message}", each.remedy, key=option) for each in wrong_generator((), there)
    ]:
        raise UsageError(*wrong)
    return there
