"""Two tenants on a real disk: the watch names the one that writes, and leaves the host as it was."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from partywall.kinds.watch import Watches
from partywall.sandbox import cgroups
from partywall.store.watch import WatchDirectory

TOOLS = ("losetup", "mkfs.ext4", "mount", "fio")
SIZE = 128 << 20
ALONE = 10
"""Periods of the reader alone."""
POLL_S, POLLS = 0.05, 1200


def lacking():
    if os.geteuid() != 0:
        return "root"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return ", ".join(missing)
    if subprocess.run(["losetup", "-f"], capture_output=True, check=False).returncode:
        return "loop devices"
    return "" if "io" in cgroups.read().unified_controllers or "blkio" in cgroups.read().v1 else "an io controller"


pytestmark = [
    *(pytest.mark.host, pytest.mark.slow, pytest.mark.long),
    pytest.mark.skipif(bool(lacking()), reason=f"a disk to watch needs: {lacking()}"),
]


def until(condition, what):
    # Counted, so that a machine that stands still for a while uses up no deadline.
    for _ in range(POLLS):
        if condition():
            return
        time.sleep(POLL_S)
    pytest.fail(what)


@pytest.fixture
def disk(tmp_path):
    """An ext4 on a loop device of its own: the device's name, and the folder where it is mounted."""
    with contextlib.ExitStack() as stack:
        image, folder = tmp_path / "image", tmp_path / "disk"
        with image.open("wb") as file:
            file.truncate(4 * SIZE)
        # Past the page cache of the file, so that requests take the time of the real disk.
        argv = ["losetup", "-f", "--show", "--direct-io=on", str(image)]
        device = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
        stack.callback(subprocess.run, ["losetup", "-d", device], check=True)
        subprocess.run(["mkfs.ext4", "-q", device], check=True)
        folder.mkdir()
        subprocess.run(["mount", device, str(folder)], check=True)
        stack.callback(subprocess.run, ["umount", str(folder)], check=True)
        yield Path(device).name, folder


@pytest.fixture
def groups(disk):
    """Two cgroups whose requests on the disk are counted."""
    found, number = cgroups.read(), Path(f"/sys/block/{disk[0]}/dev").read_text().strip()
    top = found.unified if "io" in found.unified_controllers else found.v1["blkio"]
    parent = top / f"pw-watch-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        parent.mkdir()
        stack.callback(parent.rmdir)
        if top == found.unified:
            (parent / "cgroup.subtree_control").write_text("+io")
        else:
            # The remedy that the command names. It ends with the loop device.
            (top / "blkio.throttle.read_bps_device").write_text(f"{number} 0")
        for name in ("reader", "writer"):
            (parent / name).mkdir()
            stack.callback((parent / name).rmdir)
        yield parent


@contextlib.contextmanager
def fio(group, file, *options):
    """fio in a cgroup, until the block ends."""
    argv = ["fio", "--name=x", f"--filename={file}", f"--size={SIZE}", "--direct=1", "--time_based", "--runtime=300"]
    shell = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *argv, *options]
    process = subprocess.Popen(shell, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)
        until(lambda: not (group / "cgroup.procs").read_text(), f"{group} still has processes")


def test_the_watch_names_the_tenant_that_slows_a_disk(disk, groups, tmp_path):
    (device, folder), writer = disk, f"/{groups.name}/writer"
    for name in ("r", "w"):
        (folder / name).write_bytes(os.urandom(1 << 20) * (SIZE >> 20))
    subprocess.run(["sync", "-f", str(folder)], check=True)
    out, command = tmp_path / "watch", [sys.executable, "-m", "partywall", "watch", "--device", device]
    with fio(groups / "reader", folder / "r", "--rw=randread", "--bs=4k", "--rate_iops=300"):
        watch = subprocess.Popen(
            [*command, "--every", "200ms", "--latency", "10ms", "--out", str(out)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:

            def lines():
                file = out / "events.jsonl"
                return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

            def slow():
                return [line for line in lines() if line["kind"] == "slow"]

            until(lambda: sum(line["kind"] == "span" for line in lines()) > ALONE, "the watch reads nothing")
            # Megabytes in flight all the time, whatever CPU time the writer gets: a read waits behind them.
            load = ("--rw=randwrite", "--bs=1M", "--ioengine=libaio", "--iodepth=64")
            with fio(groups / "writer", folder / "w", *load):
                # What the machine itself does meanwhile says nothing about the writer.
                until(lambda: any(writer in json.dumps(line) for line in slow()), "the writer makes nothing slow")
            until(lambda: slow()[-1].get("end_ns"), "the slow time does not end")
        finally:
            # As Ctrl-C. A shell's background jobs ignore SIGINT.
            watch.terminate()
            said, _ = watch.communicate(timeout=300)
    assert watch.returncode == 1, said
    named = [slow.neighbour.tenant for slow in Watches().findings(WatchDirectory.open(out)).slow if slow.neighbour]
    assert writer in named
    assert f"Likely neighbour: {writer}" in said
    assert (out / "report.html").exists()
