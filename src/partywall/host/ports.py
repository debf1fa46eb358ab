"""Free ports, for servers that are started for a while."""

from __future__ import annotations

import socket


def free_port(kind: int = socket.SOCK_STREAM, address: str = "127.0.0.1") -> int:
    """A port that is free now. kind: of sockets, TCP or UDP. OSError if this host lacks the address."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
