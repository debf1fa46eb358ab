"""Two tenants on a real disk: the watch names the one that writes, and leaves the host as it was."""

import contextlib
import json
import os
import shutil
import subprocess
import sys

import pytest

from benches import counted
from partywall.watch.capability import Watches
from partywall.watch.record import WatchRecord
from tests.waiting import until

SIZE = 128 << 20
ALONE = 10
"""Periods of the reader alone."""


def lacking():
    return counted.lacking() or ("" if shutil.which("fio") else "fio")


pytestmark = [
    *(pytest.mark.host, pytest.mark.long),
    pytest.mark.skipif(bool(lacking()), reason=f"a disk to watch needs: {lacking()}"),
]


@pytest.fixture
def disk(tmp_path):
    with counted.disk(tmp_path, 4 * SIZE, direct=True) as made:
        yield made


@pytest.fixture
def groups(disk):
    with counted.groups(disk, f"pw-watch-{os.getpid()}", ("reader", "writer")) as made:
        yield made


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


def test_the_watch_names_the_tenant_that_slows_a_disk(disk, groups, tmp_path):
    device, folder, writer = disk.name, disk.folder, f"/{groups.name}/writer"
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

            until(
                lambda: sum(line["kind"] == "span" for line in lines()) > ALONE,
                "the watch reads nothing",
                within_s=60.0,
            )
            # Megabytes in flight all the time, whatever CPU time the writer gets: a read waits behind them.
            load = ("--rw=randwrite", "--bs=1M", "--ioengine=libaio", "--iodepth=64")
            with fio(groups / "writer", folder / "w", *load):
                # What the machine itself does meanwhile says nothing about the writer.
                until(
                    lambda: any(writer in json.dumps(line) for line in slow()),
                    "the writer makes nothing slow",
                    within_s=60.0,
                )
            until(lambda: slow()[-1].get("end_ns"), "the slow time does not end", within_s=60.0)
        finally:
            # As Ctrl-C. A shell's background jobs ignore SIGINT.
            watch.terminate()
            said, _ = watch.communicate(timeout=300)
    assert watch.returncode == 1, said
    named = [slow.neighbour.tenant for slow in Watches().findings(WatchRecord.open(out)).slow if slow.neighbour]
    assert writer in named
    assert f"Likely neighbour: {writer}" in said
    assert (out / "report.html").exists()
