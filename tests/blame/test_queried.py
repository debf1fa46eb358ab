"""A victim that Prometheus watches. A server here stands for it, with answers as Prometheus's API gives them."""

import contextlib
import json
import math
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from hypothesis import HealthCheck, given, settings, strategies

from partywall.blame.job import BlameJob
from partywall.blame.measure import queried
from partywall.errors import UsageError

TARGETS = {"activeTargets": [{"scrapeInterval": "1s"}, {"scrapeInterval": "1m30s"}, {"scrapeInterval": "?"}]}


def vector(*values: object) -> dict[str, object]:
    return {"resultType": "vector", "result": [{"metric": {}, "value": [1.0, str(value)]} for value in values]}


@contextlib.contextmanager
def prometheus(answers: dict[str, tuple[int, object]]) -> Iterator[str]:
    """A server. answers: status and content by the last word of the path; changing them changes what it answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content = answers[self.path.partition("?")[0].rpartition("/")[2]]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def good(data: object) -> tuple[int, object]:
    return 200, {"status": "success", "data": data}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (good(vector()), "has 0 series; nothing matches it now"),
        (good(vector(1, 2)), r"has 2 series; choose one by its labels, or add them up with sum\(…\)"),
        (good(vector("NaN")), "is not a number now"),
        (good({"resultType": "matrix", "result": []}), "has matrix result, and no single number"),
        ((400, {"status": "error", "error": "parse error"}), "refuses the query: parse error"),
        ((502, "no"), "answered with status 502"),
        ((200, ["no"]), "does not answer as Prometheus does"),
    ],
)
def test_a_query_without_one_number_is_refused_in_words(answer: tuple[int, object], said: str):
    with prometheus({"query": answer, "targets": good(TARGETS)}) as url, pytest.raises(UsageError, match=said):
        queried.check(BlameJob(prometheus_url=url, query="x"))


@contextlib.contextmanager
def raw(*answers: bytes) -> Iterator[str]:
    """A server that writes these bytes and closes, one answer after the other; the last one again and again."""
    server = socket.create_server(("127.0.0.1", 0))
    ends = threading.Event()

    def serve() -> None:
        left = list(answers)
        while not ends.is_set():
            client, _ = server.accept()
            with client:
                client.recv(65536)
                client.sendall(left.pop(0) if len(left) > 1 else left[0])

    thread = threading.Thread(target=serve)
    thread.start()
    port = server.getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        ends.set()
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
        thread.join()
        server.close()


def whole(document: object) -> bytes:
    body = json.dumps(document).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"
BROKEN = {
    "a body that is cut": CUT,
    "an error that is cut": CUT.replace(b"200 OK", b"503 No"),
    "no HTTP": b"hello\r\n\r\n",
    "nothing": b"",
    "a sample that is an object": whole(
        {"status": "success", "data": {"resultType": "vector", "result": [{"value": {"a": 1}}]}}
    ),
    "a number without end": whole({"data": {"resultType": "scalar", "result": [1, 10**400]}}),
    "lists in lists": b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_answer_is_refused_before_the_experiment_and_told_during_it(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(queried, "EVERY_S", 0.001)
    with raw(BROKEN[name]) as url, pytest.raises(UsageError):
        queried.check(BlameJob(prometheus_url=url, query="x"))
    with (
        raw(whole({"data": vector(5)}), BROKEN[name]) as url,
        queried.Queried(url, "x", is_slowness=False) as victim,
    ):
        deadline = time.monotonic() + 20
        while not victim.ended():
            assert time.monotonic() < deadline, "its loss was not told"
            time.sleep(0.01)
        before = victim.read(10**9)
        assert victim.rate(before, victim.read(2 * 10**9)) is None, "the last value does not hold for ever"


ANY = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.floats() | strategies.text(),
    lambda inner: strategies.lists(inner)
    | strategies.dictionaries(strategies.sampled_from(["value", "0", "x"]), inner),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=strategies.sampled_from(["scalar", "vector", "matrix"]) | ANY,
    result=ANY | strategies.lists(strategies.fixed_dictionaries({"value": ANY})) | strategies.just([1, 10**400]),
    targets=ANY | strategies.lists(strategies.fixed_dictionaries({"scrapeInterval": ANY})),
)
def test_whatever_is_answered_is_a_number_or_refused_in_words(
    kind: object, result: object, targets: object, monkeypatch: pytest.MonkeyPatch
):
    answer = {"resultType": kind, "result": result, "activeTargets": targets}
    monkeypatch.setattr(queried, "_get", lambda *_: answer)
    with contextlib.suppress(queried.FailedError):
        assert math.isfinite(queried.value_of("", "x"))
    assert queried.scrape_interval_s("") >= 0


def test_an_error_of_the_thread_that_asks_is_told_too(monkeypatch: pytest.MonkeyPatch):
    def fails(*_: object) -> float:
        raise RuntimeError("out of threads")

    monkeypatch.setattr(queried, "EVERY_S", 0.001)
    monkeypatch.setattr(queried, "value_of", fails)
    with queried.Queried("http://127.0.0.1:9", "x", is_slowness=False) as victim:
        deadline = time.monotonic() + 10
        while not victim.ended():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert "RuntimeError: out of threads" in victim.ended()


def test_a_server_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match=r"does not answer as Prometheus does: .*refused"):
        queried.check(BlameJob(prometheus_url="http://127.0.0.1:9", query="x"))


def test_pulses_shorter_than_two_scrapes_are_refused():
    with prometheus({"query": good(vector(1)), "targets": good(TARGETS)}) as url:
        with pytest.raises(UsageError, match="pulses of 100 ms are shorter than 2 scrapes") as error:
            queried.check(BlameJob(prometheus_url=url, query="x"))
        assert "--pulse 3min" in error.value.problems[0].remedy
        queried.check(BlameJob(prometheus_url=url, query="x", pulse_ns=180 * 10**9))


def test_a_value_is_followed_and_its_loss_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(queried, "EVERY_S", 0.01)
    answers = {"query": good(vector(5)), "targets": good({"activeTargets": []})}
    with prometheus(answers) as url:
        job = BlameJob(prometheus_url=url, query="up", smaller_is_better=True)
        with queried.started(job) as victim:

            def rate() -> float | None:
                before, _ = victim.read(time.monotonic_ns()), time.sleep(0.05)
                return victim.rate(before, victim.read(time.monotonic_ns()))

            assert rate() == pytest.approx(0.2)
            answers["query"] = good({"resultType": "scalar", "result": [1.0, "2"]})
            time.sleep(0.2)
            assert rate() == pytest.approx(0.5)
            assert not victim.ended()
            answers["query"] = (503, {"error": "going down"})
            deadline = time.monotonic() + 10
            while not victim.ended():
                assert time.monotonic() < deadline, "its loss was not told"
                time.sleep(0.01)
            assert "going down" in victim.ended()
            assert rate() is None
