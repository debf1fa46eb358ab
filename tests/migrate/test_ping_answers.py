"""Answers to pings that are not ours."""

import contextlib
import os
import socket
import sys
import threading
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
                pings._receive(talk, answered, None)
    assert list(answered) == [7]


def test_a_step_of_the_time_of_day_moves_no_answer(monkeypatch):
    """The kernel stamps answers with the time of day. Its offset was taken once, before the first ping."""
    step_ns, seen = [0, 0], {}
    offset, stamps, receive = pings.realtime_offset_ns, pings._stamps, pings._receive

    def received(talk, answered, *more):
        receive(talk, answered, *more)
        now_ns = time.monotonic_ns()
        for number in answered:
            seen.setdefault(number, now_ns)

    def stamped(extra):
        # The clock does not step between the two readings of one stamp.
        step_ns[1] = step_ns[0]
        return (at_ns + step_ns[1] for at_ns in stamps(extra))

    monkeypatch.setattr(pings, "realtime_offset_ns", lambda: offset() - step_ns[1])
    monkeypatch.setattr(pings, "_stamps", stamped)
    monkeypatch.setattr(pings, "_receive", received)
    reader, writer = os.pipe()
    with os.fdopen(reader) as stdin, contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as server:
        monkeypatch.setattr(sys, "stdin", stdin)
        server.bind(("127.0.0.1", 0))

        def answer():
            for count in range(40):
                step_ns[0] = 300_000_000 * (count >= 20)
                server.sendto(*server.recvfrom(pings.DATAGRAM_BYTES))
            os.close(writer)

        threading.Thread(target=answer, daemon=True).start()
        tables = pings.ping("127.0.0.1", server.getsockname()[1], 200, None)
    answers = {number: (due, at) for number, (due, _, at) in enumerate(tables["pings"]) if at}
    assert len(answers) > 20
    assert [number for number, (due, at) in answers.items() if not due <= at <= seen[number]] == []
