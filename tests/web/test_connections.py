"""Clients that send nothing, half a request, or do not read."""

import contextlib
import socket
import threading
import time

import pytest
import uvicorn

from partywall.web import connections

LARGE = b"x" * (32 << 20)


async def answer(scope, _receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": LARGE if scope["path"] == "/large" else b"here"})


@pytest.fixture
def port(monkeypatch):
    """The port of a server that allows few connections, and waits briefly."""
    monkeypatch.setattr(connections, "REQUEST_S", 0.2)
    monkeypatch.setattr(connections, "WAITING_MAX", 4)
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(answer, http=connections.Prompt, lifespan="off", log_level="error", limit_concurrency=8)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join()


@contextlib.contextmanager
def opened(port, data=b""):
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(data)
        yield connection


def get(path="/"):
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def is_ended(connection) -> bool:
    """True as soon as the other side has ended the connection."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(1 << 20):
            pass
    return True


def is_answered(port) -> bool:
    """Whether a client that asks again gets its answer: on a busy host, the first try may seem silent to the server."""
    ends = time.monotonic() + 20
    while time.monotonic() < ends:
        with contextlib.suppress(ConnectionError), opened(port, get()) as connection:
            if connection.recv(100).startswith(b"HTTP/1.1 200"):
                return True
    return False


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\nX: ", get() + b"GET / HT"])
def test_silent_connections_are_ended_and_keep_nobody_out(port, data):
    with contextlib.ExitStack() as held:
        silent = [held.enter_context(opened(port, data)) for _ in range(40)]
        assert is_answered(port)
        assert all(is_ended(connection) for connection in silent)


def test_a_large_answer_is_given_as_long_as_it_is_read(port):
    with opened(port, get("/large")) as connection:
        count, piece = 0, b"x"
        while count < len(LARGE) and piece:
            piece = connection.recv(4 << 20)
            count += len(piece)
            time.sleep(0.03)  # slower than the server's patience in all
    assert count >= len(LARGE)


def test_a_large_answer_that_is_not_read_is_ended(port):
    with opened(port, get("/large")) as connection:
        connection.recv(100)
        ends = time.monotonic() + 30
        while connections.Prompt._waiting and time.monotonic() < ends:
            time.sleep(0.05)
        assert not connections.Prompt._waiting
