"""What an interface of a network namespace sends is shaped by a queue of Partywall's own, and how it is taken away.

A watchdog may run this file as a script, with the standard library alone: INODE INTERFACE LENGTH. It removes our queue
from an interface of the namespace, which it finds by any process or name that still holds it, and sets the length of
the interface's usual queue again, which the kernel raises from 0. Other queues stay.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HANDLE = "7077:"
"""The handle of our queues; nobody else's are touched."""
LATENCY = "5ms"
"""The longest wait in a queue. What would wait for longer is dropped; otherwise a pulse would only put off a burst."""
BURST_S = 0.001
"""A pulse begins with a full bucket, so it holds little: this time at the limit, but two whole packets at least."""
NAMED = "/run/netns"
"""The folder of the namespaces that `ip netns` has named."""


def inode(namespace: Path) -> int | None:
    """The number of a namespace, which is the same for every name of it; None if it is gone or may not be read."""
    try:
        return namespace.stat().st_ino
    except OSError:
        return None


def entrances(number: int, proc: str = "/proc", named: str = NAMED) -> Iterator[Path]:
    """Files by which a namespace can be entered: names first, which last."""
    files = (*Path(named).glob("*"), *Path(proc).glob("[0-9]*/ns/net"))
    return (file for file in files if inode(file) == number)


def burst(limit: float, mtu: int) -> int:
    """The size of a bucket in bytes. limit: bytes a second."""
    return max(2 * mtu, round(limit * BURST_S))


def bucket(rate: float, burst_bytes: int) -> str:
    """The words of tc for a bucket. rate: bytes a second."""
    return f"tbf rate {round(8 * rate)}bit burst {burst_bytes} latency {LATENCY}"


def is_ours(queue: dict[str, Any]) -> bool:
    """True if a queue, as `tc -json` shows it, is one of ours."""
    return str(queue.get("handle")) == HANDLE


def remove(namespace: Path, interface: str, length: str) -> None:
    """Removes our queue from an interface, and sets the length of its usual one. CalledProcessError if it stays."""
    enter = ("nsenter", f"--net={namespace}")
    if not _is_there(enter, interface):
        return
    gone = subprocess.run((*enter, "tc", "qdisc", "del", "dev", interface, "root"), capture_output=True, check=False)
    # Another one may have removed it in this moment.
    if gone.returncode and _is_there(enter, interface):
        gone.check_returncode()
    words = ("ip", "link", "set", "dev", interface, "txqueuelen", length)
    subprocess.run((*enter, *words), capture_output=True, check=True)


def _is_there(enter: tuple[str, ...], interface: str) -> bool:
    shown = subprocess.run((*enter, "tc", "-json", "qdisc", "show"), capture_output=True, check=True)
    return any(is_ours(each) and each["dev"] == interface for each in json.loads(shown.stdout or b"[]"))


def main() -> None:
    """Removes our queue, unless the namespace is gone. The exit status is 1 if that fails."""
    number, interface, length = sys.argv[1:]
    why = ""
    for entrance in entrances(int(number)):
        try:
            return remove(entrance, interface, length)
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            # The process that was to be entered by may have ended; another one may do.
            why = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip() or str(error)
    sys.exit(why or None)


if __name__ == "__main__":
    main()
