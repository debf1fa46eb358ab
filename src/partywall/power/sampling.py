"""Readings of several meters, each in a thread of its own, and CPU time beside them.

A meter that is slow, silent or dead stops nothing but itself: its thread notes the fault, and tries again later. A
thread that hangs inside a reading is reported too, and is left behind at the end.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from partywall.clock import Clock, Monotonic
from partywall.power.activity import Read, used
from partywall.power.meters import Meter, MeterError
from partywall.power.values import Activity, FaultKind, MeterFault, Reading

HANGS_S = 5.0
"""A reading that takes longer hangs; meters give up before."""
AGAIN_S = 1.0
"""After a fault, the next try comes this much later."""

Take = Callable[[Reading | MeterFault | Activity], None]


class Sampler:
    """Reads meters until it is closed. take: receives each reading, fault and activity, from several threads.

    `look` and `close` raise what has ended one of the threads, such as a full disk: what it read later is missing.
    """

    def __init__(
        self,
        meters: Mapping[str, Meter],
        every_s: float,
        take: Take,
        cpus: Callable[[], tuple[float, ...]] | None = None,
        consumers: Mapping[str, Read] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._every_ns, self._clock = round(every_s * 1e9), clock or Monotonic()
        self._lock, self._sink = threading.Lock(), take
        self._ended = threading.Event()
        self._begun_ns: dict[str, int | None] = {}
        self._hanging: set[str] = set()
        self._failed: Exception | None = None
        self._cpus, self._consumers = cpus, consumers or {}
        self._threads = [
            threading.Thread(target=self._run, args=(self._read, name, meter), name=f"meter-{name}", daemon=True)
            for name, meter in meters.items()
        ]
        if cpus is not None:
            self._threads.append(threading.Thread(target=self._run, args=(self._watch,), name="activity", daemon=True))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all threads but those that hang."""
        self._ended.set()
        self._tell_hanging()
        deadline = time.monotonic() + HANGS_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self.look()

    def look(self) -> None:
        """Reports meters whose reading hangs, once each."""
        if self._failed is not None:
            raise self._failed
        self._tell_hanging()

    def _tell_hanging(self) -> None:
        now_ns = self._clock.now_ns()
        for name, begun_ns in list(self._begun_ns.items()):
            hangs = begun_ns is not None and now_ns - begun_ns > HANGS_S * 1e9
            if hangs and name not in self._hanging:
                self._hanging.add(name)
                self._fault(name, "silent", f"a reading has not ended within {HANGS_S:g} s")
            if not hangs:
                self._hanging.discard(name)

    def _run(self, body: Callable[..., None], *of: Any) -> None:
        try:
            body(*of)
        except Exception as error:  # noqa: BLE001 - `look` raises it in the thread that waits
            self._failed = self._failed or error

    def _read(self, name: str, meter: Meter) -> None:
        due_ns = self._clock.now_ns()
        while not self._ended.is_set():
            self._begun_ns[name] = self._clock.now_ns()
            wait_s = 0.0
            try:
                reading = meter.read()
            except MeterError as error:
                self._fault(name, error.kind, str(error))
                wait_s = AGAIN_S
            except Exception as error:  # noqa: BLE001 - one meter's mistake must not end the measurement
                self._fault(name, "garbage", f"{type(error).__name__}: {error}")
                wait_s = AGAIN_S
            else:
                if not self._ended.is_set():
                    self._take(reading.model_copy(update={"meter": name}))
            self._begun_ns[name] = None
            due_ns = max(due_ns + self._every_ns, self._clock.now_ns() + round(wait_s * 1e9))
            self._ended.wait(max(0.0, (due_ns - self._clock.now_ns()) / 1e9))
        with contextlib.suppress(Exception):
            meter.close()

    def _watch(self) -> None:
        due_ns, last = self._clock.now_ns(), dict.fromkeys(self._consumers, 0.0)
        while self._cpus is not None:
            before_ns = self._clock.now_ns()
            cpus_s = self._cpus()
            middle_ns = (before_ns + self._clock.now_ns()) // 2
            last = used(self._consumers, last)
            self._take(Activity(time_ns=middle_ns, cpus_s=cpus_s, consumers_s=last))
            due_ns += self._every_ns
            if self._ended.wait(max(0.0, (due_ns - self._clock.now_ns()) / 1e9)):
                return

    def _fault(self, name: str, kind: FaultKind, text: str) -> None:
        self._take(MeterFault(meter=name, time_ns=self._clock.now_ns(), fault=kind, text=text))

    def _take(self, value: Reading | MeterFault | Activity) -> None:
        with self._lock:
            self._sink(value)
