"""What ends a line: in files of the kernel and of users, only a line end does.

`str.splitlines` also splits at characters that the names of cgroups, mounts and files, and texts of users, may contain.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import partywall
from partywall.host.mounts import mounts
from partywall.sandbox.delegation import own_path
from partywall.sandbox.tenants import cgroups_of

ODD = "a\x0bb\x1cc\x85d\u2028e"
SOURCES = Path(partywall.__file__).parent
SHOWN = "a message of a program or an error, of which lines are shown"
NUMBERS = "words of the kernel's and numbers, no names"
OWN = "written by Partywall or by a program that prints no free text"
SPLIT = {
    "agent/metric.py": SHOWN,
    "cli/completion.py": OWN,
    "core/document/compose.py": SHOWN,
    "guard/measure/resolve.py": SHOWN,
    "host/nodes.py": NUMBERS,
    "host/settings/watchdog.py": SHOWN,
    "host/waits.py": NUMBERS,
    "blame/measure/labels.py": SHOWN,
    "fleet/engines/package.py": OWN,
    "load/measure.py": SHOWN,
    "load/recorder/correlation.py": "the context of a value in a page; a shorter one is right too",
    "load/tomcat.py": SHOWN,
    "migrate/measure/guest.py": SHOWN,
    "migrate/measure/libvirt_end.py": SHOWN,
    "migrate/measure/pings.py": NUMBERS,
    "power/activity.py": NUMBERS,
    "processor.py": NUMBERS,
    "run/findings/headline.py": SHOWN,
    "run/record/pending.py": SHOWN,
    "sandbox/container.py": NUMBERS,
    "sandbox/group_counts.py": NUMBERS,
    "sandbox/hooks.py": OWN,
    "sandbox/lab.py": NUMBERS,
    "sandbox/libvirt/library.py": SHOWN,
    "sandbox/privileges.py": NUMBERS,
    "sandbox/qemu/backend.py": SHOWN,
    "sandbox/qemu/disk.py": OWN,
    "sandbox/qemu/kernel.py": SHOWN,
    "sandbox/qemu/modules.py": OWN,
    "sandbox/qemu/needs.py": SHOWN,
    "sandbox/qemu/root.py": "lists of package sources, which are ASCII",
    "sandbox/runtime.py": SHOWN,
    "sandbox/ssh/connection.py": SHOWN,
    "watch/measure/processes.py": NUMBERS,
    "watch/measure/reading.py": NUMBERS,
    "watch/stalls/reading.py": NUMBERS,
    "watch/stalls/ring.py": "bytes, in which only line ends end a line; JSON has none inside a value",
    "web/stream.py": "JSON in ASCII",
}
"""Code that calls `splitlines` of a text, and why what it splits has no such characters, or may be split there."""
NOT_LISTED = ("testing/",)
"""Folders whose files are not listed: what only tests use."""


def splits(source: Path) -> bool:
    return any(
        isinstance(each, ast.Attribute) and each.attr == "splitlines"
        for each in ast.walk(ast.parse(source.read_text()))
    )


def test_no_other_code_splits_lines_where_names_may_be():
    files = {str(source.relative_to(SOURCES)): source for source in SOURCES.rglob("*.py")}
    found = {name for name, source in files.items() if not name.startswith(NOT_LISTED) and splits(source)}
    assert found == SPLIT.keys()


def test_a_cgroup_has_one_path_whatever_its_name(tmp_path):
    (tmp_path / "cgroup").write_text(f"4:memory:/m/{ODD}\n0::/pods/{ODD}\n", newline="")
    assert cgroups_of(tmp_path) == [f"/m/{ODD}", f"/pods/{ODD}"]
    assert own_path(f"0::/pods/{ODD}\n") == f"/pods/{ODD}"


@pytest.mark.parametrize("name", [ODD, "a\rb"])
def test_a_mount_has_one_line_whatever_its_name(tmp_path, name):
    table = tmp_path / "proc/self/mountinfo"
    table.parent.mkdir(parents=True)
    table.write_text(
        f"20 1 0:20 / /mnt/{name} rw - ext4 /dev/vda rw\n21 1 0:21 / /b rw - ext4 /dev/vdb rw\n", newline=""
    )
    assert [str(mount.point) for mount in mounts(tmp_path)] == [f"/mnt/{name}", "/b"]
