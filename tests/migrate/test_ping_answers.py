"""Answers to pings that are not ours."""

import contextlib
import socket
import time

from partywall.migrate.measure import pings


def test_an_answer_that_is_too_short_does_not_end_the_pings():
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as server:
        server.bind(("127.0.0.1", 0))
        with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as talk:
            talk.setsockopt(socket.SOL_SOCKET, pings.SO_TIMESTAMPNS, 1)
            talk.connect(server.getsockname())
            talk.setblocking(False)
            pings._send(talk, 7, None)
            data, client = server.recvfrom(pings.DATAGRAM_BYTES)
            for answer in (b"", b"\1\2\3", data):
                server.sendto(answer, client)
            answered, deadline = {}, time.monotonic() + 10
            while not answered and time.monotonic() < deadline:
                pings._receive(talk, answered, 0, None)
    assert list(answered) == [7]
