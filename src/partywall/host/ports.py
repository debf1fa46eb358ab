"""Free ports of the loopback interface, for servers that are started for a while."""

from __future__ import annotations

import socket


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    """A port of 127.0.0.1 that is free now. kind: of sockets, TCP or UDP."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
