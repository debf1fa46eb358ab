"""What a guard wrote down, and when it is forgotten."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from partywall.guard.measure import left
from partywall.host.label import start_ticks

OWN = "/proc/self/ns/net"


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path))


def written(name: str, *namespaces: str | None, pid: int | None = None, **more: object) -> None:
    hooks = [{"namespace": namespace, "interface": "eth0", "direction": "egress"} for namespace in namespaces]
    ticks = start_ticks(pid) if pid else None
    left.state(name).write_text(json.dumps({"pid": pid, "start_ticks": ticks, "hooks": hooks, **more}))


def test_a_policy_whose_keeper_and_namespaces_are_gone_is_forgotten() -> None:
    written("over", "/run/netns/nosuch-a", "/run/netns/nosuch-b", pid=2**22 + 1)
    assert left.reap() == ["over"]
    assert not left.state("over").exists()
    assert left.reap() == []


def test_a_policy_that_is_kept_or_may_have_left_something_stays() -> None:
    written("kept", "/run/netns/nosuch", pid=os.getpid())
    written("here", "/run/netns/nosuch", None)
    written("there", "/run/netns/nosuch", OWN)
    left.state("broken").write_text("{")
    left.state("odd").write_text("[]")
    assert left.reap() == []


def test_a_namespace_that_lost_its_file_is_found_by_the_processes_in_it() -> None:
    status = Path(OWN).stat()
    written("moved", "/run/netns/nosuch", namespaces={"/run/netns/nosuch": [status.st_dev, status.st_ino]})
    assert left.reap() == []
    (result,) = left.located("moved", left.hooks(left.state("moved")))
    assert Path(result["namespace"]).stat().st_ino == status.st_ino


def test_both_namespaces_are_looked_at_where_a_file_stands_for_another_now() -> None:
    status = Path(OWN).stat()
    written("anew", "/proc/version", namespaces={"/proc/version": [status.st_dev, status.st_ino]})
    result = [hook["namespace"] for hook in left.located("anew", left.hooks(left.state("anew")))]
    assert result[0] == "/proc/version"
    assert len(result) == 2
