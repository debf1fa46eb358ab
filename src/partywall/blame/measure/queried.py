"""A victim whose speed Prometheus knows: a query with one value, asked again and again."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import re
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any, Self

from partywall import units
from partywall.blame.job import BlameJob
from partywall.blame.measure.victim import Silence, Stated
from partywall.errors import Problem, UsageError

TIMEOUT_S = 5.0
EVERY_S = 0.25
"""How often it is asked: most answers repeat the last scrape."""
SCRAPES = 2
"""A pulse lasts for at least this many scrapes, so that one of them is all within it."""
SILENT = 20
"""After this many failures in a row, it counts as gone."""
KEY = "--prometheus-url"
SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


class FailedError(Exception):
    """Prometheus cannot be asked, or has no single number. The text says why."""


class Queried(Stated):
    """A value of Prometheus. unit: the query."""

    def __init__(self, base: str, query: str, *, is_slowness: bool) -> None:
        super().__init__(Silence.UNKNOWN, is_slowness=is_slowness)
        self.unit = query if len(query) < 40 else f"{query[:39]}…"
        self._base, self._query = base, query
        self._stopped, self._gone, self._failures = threading.Event(), "", 0
        self._thread = threading.Thread(target=self._ask_on, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(TIMEOUT_S)

    def _ask_on(self) -> None:
        try:
            while not self._stopped.wait(EVERY_S):
                self._ask()
        except Exception as error:  # noqa: BLE001 - who reads the value must learn that it is not asked for any more
            self.state(None)
            self._gone = f"{type(error).__name__}: {error}"

    def _ask(self) -> None:
        try:
            self.state(value_of(self._base, self._query))
            self._failures = 0
        except FailedError as error:
            self.state(None)
            self._failures += 1
            self._gone = str(error) if self._failures >= SILENT else ""

    def pids(self) -> list[int]:
        return []

    def ended(self) -> str:
        return f"is not known to Prometheus any more: {self._gone}" if self._gone else ""


@contextlib.contextmanager
def started(job: BlameJob) -> Iterator[Queried]:
    """The victim of a job. UsageError if its query has no single number, or if pulses are too short for it."""
    check(job)
    with Queried(job.prometheus_url, job.query, is_slowness=job.smaller_is_better) as victim:
        yield victim


def check(job: BlameJob) -> None:
    """UsageError if the query has no single number now, or if pulses are shorter than scrapes allow."""
    try:
        value_of(job.prometheus_url, job.query)
        interval_s = scrape_interval_s(job.prometheus_url)
    except FailedError as error:
        raise UsageError(Problem(str(error), "try it in Prometheus's own page first", key=KEY)) from None
    least_ns = round(SCRAPES * interval_s * 1e9)
    if job.pulse_ns < least_ns:
        said = f"pulses of {units.format_duration(job.pulse_ns)} are shorter than {SCRAPES} scrapes"
        least = units.format_duration(least_ns).replace(" ", "")
        remedy = f"give --pulse {least}, a --budget for some hundred of them and --harm 10%, or scrape more often"
        raise UsageError(Problem(said, remedy, key="--pulse"))


def value_of(base: str, query: str) -> float:
    """The one number of a query now. FailedError if there is none, or there are several."""
    data = _get(base, f"/api/v1/query?{urllib.parse.urlencode({'query': query})}")
    samples: list[Any]
    kind, result = data.get("resultType"), data.get("result")
    if kind == "scalar" and isinstance(result, list):
        samples = [result]
    elif kind == "vector" and isinstance(result, list):
        samples = [each.get("value") for each in result if isinstance(each, dict)]
    else:
        raise FailedError(f"the query has {kind or 'no'} result, and no single number; end it with an instant value")
    if len(samples) != 1:
        remedy = "choose one by its labels, or add them up with sum(…)"
        raise FailedError(f"the query has {len(samples)} series; {remedy if samples else 'nothing matches it now'}")
    with contextlib.suppress(TypeError, ValueError, LookupError, OverflowError):
        if math.isfinite(value := float(samples[0][1])):
            return value
    raise FailedError("the query's value is not a number now")


def scrape_interval_s(base: str) -> float:
    """The longest interval of all targets; 0 if there is none."""
    targets = _get(base, "/api/v1/targets?state=active").get("activeTargets")
    every = targets if isinstance(targets, list) else []
    written = (target.get("scrapeInterval") for target in every if isinstance(target, dict))
    return max((_seconds(text) for text in written if isinstance(text, str)), default=0.0)


def _seconds(text: str) -> float:
    """A duration as Prometheus writes it, such as 1m30s."""
    return sum(int(number) * SECONDS[unit] for number, unit in re.findall(r"(\d+)(ms|[smhd])", text))


def _get(base: str, path: str) -> dict[str, Any]:
    url = f"{base.rstrip('/')}{path}"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310 - checked by the job
            document = json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            raise FailedError(_reason(_body(error), error.code)) from None
    except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
        said = getattr(error, "reason", error)
        raise FailedError(f"{base} does not answer as Prometheus does: {said or type(error).__name__}") from None
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(data, dict):
        raise FailedError(f"{base} does not answer as Prometheus does")
    return data


def _body(error: urllib.error.HTTPError) -> bytes:
    """What came of the answer; the end of a connection may have cut it."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return error.read()
    return b""


def _reason(body: bytes, status: int) -> str:
    """What Prometheus says about a query that it refuses."""
    with contextlib.suppress(ValueError, AttributeError, RecursionError):
        if said := json.loads(body).get("error"):
            return f"Prometheus refuses the query: {said}"
    return f"it answered with status {status}"
