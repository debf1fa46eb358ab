"""The metrics in OpenTelemetry's protocol: JSON over HTTP, as a collector on this host takes them.

Source: OpenTelemetry Protocol 1.5, section "OTLP/HTTP", and its metrics.proto. A counter has no `_total` there, because
a collector that writes for Prometheus adds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from partywall.watch.stalls.totals import PAIRS, STALLED, Family, Key

PATH = "/v1/metrics"
PATIENCE_S = 2.0
"""The loop waits for a collector no longer, apart from what its name takes to be found: it still finds stalls in time.
"""
CUMULATIVE = 2


@dataclass(frozen=True)
class Collector:
    """A place that takes OTLP over HTTP."""

    host: str
    port: int
    path: str

    @classmethod
    def parsed(cls, url: str) -> Collector:
        """Of http://HOST:PORT, with or without a path. ValueError if it is none."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{url!r} is no address of a collector; write for example http://127.0.0.1:4318")
        return cls(parts.hostname, parts.port or 4318, parts.path.rstrip("/") or PATH)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{self.path}"

    def send(self, content: bytes) -> None:
        """Posts a document. OSError if it is not taken."""
        connection = None
        try:
            connection = HTTPConnection(self.host, self.port, timeout=PATIENCE_S)
            connection.request("POST", self.path, content, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
        except (HTTPException, UnicodeError) as error:
            raise OSError(0, f"its address or its answer is wrong ({type(error).__name__})") from None
        finally:
            if connection is not None:
                connection.close()
        if not 200 <= answer.status < 300:
            raise OSError(0, f"it answered {answer.status} {answer.reason}")


def document(
    families: Iterable[Family], pairs: Mapping[Key, int], about: Mapping[str, str], began_ns: int, at_ns: int
) -> bytes:
    """One request. pairs: stalled ns. about: of the resource. began_ns, at_ns: since 1970."""
    times = {"startTimeUnixNano": str(began_ns), "timeUnixNano": str(at_ns)}
    names = ("victim", "suspect", "resource")
    stalled = Family(
        PAIRS, STALLED, "counter",
        [(dict(zip(names, key, strict=True)), stalled_ns / 1e9) for key, stalled_ns in pairs.items()],
    )  # fmt: skip
    metrics = [_metric(family, times) for family in (stalled, *families) if family.samples]
    version = about.get("service.version", "")
    scope = {"scope": {"name": "partywall-watch", "version": version}, "metrics": metrics}
    resource = {"attributes": _attributes(about)}
    return json.dumps({"resourceMetrics": [{"resource": resource, "scopeMetrics": [scope]}]}).encode()


def _metric(family: Family, times: Mapping[str, str]) -> dict[str, Any]:
    # Counters of the host are as old as the host, and not as the watch.
    now = {key: at for key, at in times.items() if not (key.startswith("start") and "_host_" in family.name)}
    points = [{**now, "asDouble": float(value), "attributes": _attributes(labels)} for labels, value in family.samples]
    name, is_counter = family.name.removesuffix("_total"), family.kind == "counter"
    unit = "s" if name.endswith("_seconds") else "By" if name.endswith("_bytes") else ""
    described = {"name": name, "description": family.about, "unit": unit}
    if is_counter:
        return described | {"sum": {"aggregationTemporality": CUMULATIVE, "isMonotonic": True, "dataPoints": points}}
    return described | {"gauge": {"dataPoints": points}}


def _attributes(labels: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in labels.items()]
