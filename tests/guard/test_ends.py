"""Which end of a veth an interface is, and what passes beside its hook, on real interfaces."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from partywall.errors import UsageError
from partywall.guard.document import Policy
from partywall.guard.measure.ends import beside_hooks, check_sides
from partywall.guard.measure.resolve import VifPlace, resolve
from tests.guard.records import guard

pytestmark = [pytest.mark.host, pytest.mark.usefixtures("guarded_lab")]
SWITCH, TENANTS = f"pwe{os.getpid() % 10000}s", [f"pwe{os.getpid() % 10000}{name}" for name in "ab"]


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def switch() -> Iterator[None]:
    """Two tenants, whose host ends are in a namespace of their own."""
    for namespace in (SWITCH, *TENANTS):
        ip("netns", "add", namespace)
    try:
        for number, tenant in enumerate(TENANTS):
            pair = ("type", "veth", "peer", "name", "eth0", "netns", tenant)
            ip("link", "add", f"port{number}", "netns", SWITCH, *pair)
        yield
    finally:
        for namespace in (SWITCH, *TENANTS):
            ip("netns", "del", namespace)


def bridged() -> None:
    ip("-n", SWITCH, "link", "add", "br0", "type", "bridge")
    for port in ("port0", "port1"):
        ip("-n", SWITCH, "link", "set", port, "master", "br0")


def content(**more: str) -> dict[str, object]:
    vifs = {name: {"interface": f"port{at}", "namespace": SWITCH, **more} for at, name in enumerate("ab")}
    return {"partywall_guard": 1, "name": "ends", "link": {"capacity": "30Mbit/s"}, "vifs": vifs}


def problems(**more: str) -> list[str]:
    policy = Policy.model_validate(content(**more))
    try:
        check_sides(policy, resolve(policy))
    except UsageError as error:
        return [f"{problem.key}: {problem.message}; {problem.remedy}" for problem in error.problems]
    return []


@pytest.mark.usefixtures("switch")
def test_a_side_is_asked_for_where_the_interface_looks_like_the_hosts_end() -> None:
    routed = problems()
    assert ["other end in another namespace" in each for each in routed] == [True, True]
    bridged()
    assert ["vifs.a.side: port0 in" in each and "port of br0" in each for each in problems()] == [True, False]
    assert all("side: outside" in each for each in problems())
    assert problems(side="outside") == problems(side="inside") == []


@pytest.mark.usefixtures("switch")
def test_a_tenants_own_end_needs_no_side() -> None:
    bridged()
    vifs = {name: {"interface": "eth0", "namespace": tenant} for name, tenant in zip("ab", TENANTS, strict=True)}
    policy = Policy.model_validate(content() | {"vifs": vifs})
    check_sides(policy, resolve(policy))


@pytest.mark.usefixtures("switch")
def test_check_asks_for_a_side_too_and_needs_no_interface(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(json.dumps(content()))
    with pytest.raises(UsageError, match=r"vifs\.b\.side"):
        guard("check", file)
    file.write_text(file.read_text().replace(SWITCH, "elsewhere"))
    assert guard("check", file) == 0


@pytest.mark.usefixtures("switch")
def test_an_interface_without_anything_beside_its_hook_gives_no_warning() -> None:
    assert list(beside_hooks({"a": VifPlace("eth0", f"/run/netns/{TENANTS[0]}", inside=True)}, {})) == []
