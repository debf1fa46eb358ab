"""What the benchmarks of virtual machines share: guests started by hand, on a label of their own."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from typing import Any

from partywall.agent.client import AgentClient
from partywall.host import Host
from partywall.host.label import WORK_ROOT, Label
from partywall.sandbox import Sandbox, Settings, make, qemu, reap, reaper


def lacking() -> str:
    """What keeps guests from being started here, with the remedy."""
    return qemu.lacking(Host.here())


@contextlib.contextmanager
def guests(count: int, cpus: tuple[int, ...] = (0, 1), **settings: Any) -> Iterator[list[Sandbox]]:
    """Guests that are made and not started, on the given CPUs in turn; taken down on leaving."""
    reap()
    label = Label.create(f"bench-vm-{secrets.token_hex(4)}", WORK_ROOT)
    common = {"backend": "qemu", "files": False} | settings
    made = [make(Settings(name=f"guest{n}", cpus=(cpus[n % len(cpus)],), **common), label) for n in range(count)]
    try:
        yield made
    finally:
        for guest in made:
            guest.stop()
        reaper.clean(label)


def come_up(made: list[Sandbox]) -> float:
    """Seconds until all of them have said hello."""
    began = time.monotonic()
    for guest in made:
        guest.launch(_ignore)
    for guest in made:
        guest.start(_ignore)
    return time.monotonic() - began


def client(guest: Sandbox) -> AgentClient:
    """The agent of a guest that has come up."""
    if guest.client is None:
        raise AssertionError("the guest was not started")
    return guest.client


def _ignore(_method: str, _params: dict[str, Any]) -> None: ...
