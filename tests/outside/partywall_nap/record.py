"""The record: a line for each sleep."""

from __future__ import annotations

from collections.abc import Iterator

from partywall.core.record import JobRecord, Stream, Tabled
from partywall.values import Frozen
from partywall_nap.job import NapJob


class Nap(Frozen):
    """One sleep: how long it should take, and how much longer it took."""

    wanted_ns: int
    late_ns: int


def _naps(nap: Nap) -> Iterator[Nap]:
    yield nap


class NapRecord(JobRecord[NapJob]):
    KIND = "nap"
    JOBS = (NapJob,)
    TABLES = (Tabled("naps", Nap, Nap, _naps),)
    stream = Stream[Nap](nap=Nap)
