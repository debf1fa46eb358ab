"""Tenants of a host, given as text."""

from __future__ import annotations

import os

import pytest

from partywall.host import Host
from partywall.sandbox.tenants import Tenant, named


@pytest.mark.parametrize(
    ("text", "tenant"),
    [
        ("/system.slice/nginx.service", Tenant("/system.slice/nginx.service", cgroup="system.slice/nginx.service")),
        ("cgroup:/a/b", Tenant("/a/b", cgroup="a/b")),
        ("web=cgroup:/a/b", Tenant("web", cgroup="a/b")),
        ("/machine/vm=1.scope", Tenant("/machine/vm=1.scope", cgroup="machine/vm=1.scope")),
        ("cgroup:vm=1.scope", Tenant("vm=1.scope", cgroup="vm=1.scope")),
        ("vm=/machine/vm=1.scope", Tenant("vm", cgroup="machine/vm=1.scope")),
        # (An id of its own: one that held the process's number would differ from one test worker to the next.)
        pytest.param(f"me=pid:{os.getpid()}", Tenant("me", pid=os.getpid()), id="me=pid"),
    ],
)
def test_a_path_may_have_an_equals_sign_and_a_name_stands_before_the_first(text, tenant):
    assert named(text, Host.here()) == tenant
