"""Holds a TCP connection at a ceiling where the guard has only a hook, and says what arrived, as JSON."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

from namespaces import ADDRESSES, NAMES, enter, guarding, joined, run

CEILING = 20_000_000
POLICY = Path(__file__).with_name("policy-tcp.yaml")
SPAN_S, SETTLED_S = 10.0, 4.0
PORT = 5001
# Of a full frame on the wire of a veth, with timestamps.
PAYLOAD = 1448 / 1514
PIECE = bytes(65536)


def send() -> None:
    """Fills one connection until its peer is gone. To be called in a process of its own."""
    enter(NAMES[0])
    with socket.create_connection((ADDRESSES[1], PORT), 30) as connection:
        connection.settimeout(None)
        try:
            while True:
                connection.sendall(PIECE)
        except OSError:
            return


def receive(until: float) -> None:
    """Says, a line each, when it had received how many bytes. To be called in a process of its own."""
    enter(NAMES[1])
    with socket.create_server((ADDRESSES[1], PORT)) as listening:
        listening.settimeout(60)
        connection, _ = listening.accept()
        count = 0
        while time.monotonic() < until and (piece := connection.recv(65536)):
            count += len(piece)
            print(json.dumps([time.monotonic(), count]), flush=True)


def main() -> int:
    with joined():
        run(f"ip -n {NAMES[1]} link set lo up")
        guard = guarding(POLICY)
        if not hooked(guard):
            print(guard.communicate()[0])
            return guard.returncode or 1
        receiver = subprocess.Popen([sys.executable, __file__, "receive"], stdout=subprocess.PIPE, text=True)
        time.sleep(2)
        sender = subprocess.Popen([sys.executable, __file__, "send"])
        lines = receiver.communicate()[0].splitlines()
        sender.kill()
        sender.wait()
        detour = "pwguard" in run(f"ip -n {NAMES[1]} -brief link").stdout
        guard.send_signal(2)
        # Its output is searched by the check, as all output is.
        print(guard.communicate()[0])
        if guard.returncode:
            return guard.returncode
        bps = goodput([json.loads(line) for line in lines])
        kept = bps / (CEILING * PAYLOAD)
        print(json.dumps({"bps": bps, "ceiling": CEILING, "kept": kept, "detour": detour, "left": left()}))
        return 0


def hooked(guard: subprocess.Popen[str], deadline_s: float = 100.0) -> bool:
    """Waits until the guard has its hook; False if the guard ended first."""
    until = time.monotonic() + deadline_s
    while time.monotonic() < until and guard.poll() is None:
        if "clsact" in queues() or "tcx" in run(f"ip -n {NAMES[1]} -details link show dev vb").stdout:
            time.sleep(3)
            return True
        time.sleep(0.5)
    guard.kill()
    return False


def queues() -> str:
    return run(f"tc -n {NAMES[1]} qdisc show dev vb").stdout


def goodput(received: list[list[float]]) -> float:
    """Bits a second of the span's end, when the connection has found its rate."""
    settled = [row for row in received if row[0] >= received[0][0] + SETTLED_S]
    if len(settled) < 2:
        sys.exit(f"the connection ended within {SETTLED_S:.0f} s, so it has no rate: received {received[-1:]}")
    (began, first), (ended, last) = settled[0], settled[-1]
    return (last - first) * 8 / (ended - began)


def left() -> list[str]:
    """Interfaces and queues that were not there before."""
    links = run(f"ip -n {NAMES[1]} -brief link").stdout.splitlines()
    return [line for line in links if "pwguard" in line] + [
        line for line in queues().splitlines() if "noqueue" not in line
    ]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["send"]:
            send()
        case ["receive"]:
            receive(time.monotonic() + 2 + SETTLED_S + SPAN_S)
        case _:
            sys.exit(main())
