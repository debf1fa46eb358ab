"""Attributes watts to a guest under KVM that computes without a pause, and says what the kernel counted, as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from partywall.host.label import WORK_ROOT, Label
from partywall.sandbox import Settings, make, reaper

SPAN_S = 10
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def main() -> int:
    label = Label.create(f"guest-power-{os.getpid()}", WORK_ROOT)
    guest = make(Settings(name="guest", backend="qemu", cpus=(0,), host_cpus=(1,), files=False, accel="kvm"), label)
    try:
        client = guest.start(lambda *_: None)
        guest.settle()
        work = {"kernel": {"name": "integer", "params": {}}}
        client.call("workload.start", timeout_s=60, id="w", work=work, pace="flat_out", work_dir=guest.work_dir)
        print(json.dumps(attributed(guest.pid, guest.cgroup_member)))
    finally:
        guest.stop()
        reaper.clean(label)
    return 0


def attributed(pid: int, vcpu: int) -> dict[str, float]:
    """The attribution's figures and the kernel's, of the same time but for the start and the end of the command."""
    command = ["partywall", "power", "attribute", "--model", "cervera-dl120-g6", "--for", f"{SPAN_S}s"]
    command += ["--out", "power", f"guest=pid:{pid}"]
    subprocess.run(["rm", "-rf", "power"], check=True)
    running = subprocess.Popen(command)
    while not Path("power/events.jsonl").exists() and running.poll() is None:
        time.sleep(0.05)
    before, began = used(pid, vcpu), time.monotonic()
    if running.wait():
        raise SystemExit(running.returncode)
    after, span_s = used(pid, vcpu), time.monotonic() - began
    attribution = json.loads(Path("power/findings.json").read_text())["attribution"]
    share = next(each for each in attribution["shares"] if each["name"] == "guest")
    process_s, guest_s = ((now - then) / span_s for now, then in zip(after, before, strict=True))
    figures = {"attributed_s": share["cpu_s"], "watts": share["active"]["value"], "span_s": float(SPAN_S)}
    return figures | {"process_s": process_s * SPAN_S, "guest_s": guest_s * SPAN_S}


def used(pid: int, vcpu: int) -> tuple[float, float]:
    """Seconds of QEMU's process, whose other threads emulate devices, and those that its virtual CPU was in the guest.

    proc_pid_stat(5): utime, stime and guest_time.
    """
    whole, thread = (
        Path(f"/proc/{place}/stat").read_text().rpartition(")")[2].split() for place in (pid, f"{pid}/task/{vcpu}")
    )
    return (int(whole[11]) + int(whole[12])) * TICK_S, int(thread[40]) * TICK_S


sys.exit(main())
