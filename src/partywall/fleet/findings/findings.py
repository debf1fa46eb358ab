"""Derives what is said of a fleet from the figures of its hosts. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from partywall.core.stats.estimate import Estimate, Outcome
from partywall.core.stats.quantile import student_reach
from partywall.errors import Problem, TrialError, UsageError
from partywall.fleet.findings import judging, sharing
from partywall.fleet.findings.allocating import is_open
from partywall.fleet.findings.judging import FALSE_DISCOVERIES, MIN_HOSTS, Admitted, Flags, Gated
from partywall.fleet.findings.pooling import Floats, Posterior, fitted, moderated
from partywall.fleet.findings.sharing import Shared
from partywall.fleet.record import Cell, Measured


@dataclass(frozen=True)
class Reading:
    """One cell on all hosts that have it. hosts: names; values, errors: logarithms and their standard errors."""

    name: str
    is_rate: bool
    is_directed: bool
    hosts: tuple[str, ...]
    values: Floats
    errors: Floats
    blocks: Floats

    @cached_property
    def moderated(self) -> Floats:
        """Standard errors that borrow from each other."""
        return moderated(self.errors, self.blocks)

    @cached_property
    def sound(self) -> Flags:
        """The hosts that make up the fleet."""
        return judging.sound(self.values, self.moderated)


@dataclass(frozen=True)
class HostCell:
    """A host in a cell. value: as measured; shrunk: drawn towards the fleet.

    chance: a p-value, adjusted for everything that is judged. fleet: the middle of the sound hosts. is_directed:
    whether less is worse.
    """

    host: str
    value: Estimate
    shrunk: Estimate
    chance: float
    fleet: float
    is_directed: bool = True

    @property
    def is_outlier(self) -> bool:
        return self.chance <= FALSE_DISCOVERIES

    @property
    def is_worse(self) -> bool:
        return self.is_outlier and self.is_directed and self.value.value < self.fleet

    @property
    def is_other(self) -> bool:
        """Whether it differs, and nobody knows which way is worse."""
        return self.is_outlier and not self.is_directed

    @property
    def is_named(self) -> bool:
        return self.is_worse or self.is_other


@dataclass(frozen=True)
class FleetCell:
    """A cell of the fleet. factor: its mean; spread: between hosts, as a share; unseen: for a host not measured.

    factor and unseen are None with fewer than `MIN_HOSTS` hosts.
    """

    name: str
    is_rate: bool
    is_directed: bool
    hosts: tuple[HostCell, ...]
    factor: Estimate | None = None
    spread: float | None = None
    unseen: tuple[float, float] | None = None


@dataclass(frozen=True)
class FleetFindings:
    """What is known of a fleet. measured, failed: hosts, with why they were not measured; shared: by its outliers."""

    cells: tuple[FleetCell, ...]
    measured: Mapping[str, Measured]
    failed: Mapping[str, str]
    shared: tuple[Shared, ...] = ()

    @cached_property
    def outliers(self) -> list[tuple[FleetCell, HostCell]]:
        """The most certain first."""
        every = [(cell, host) for cell in self.cells for host in cell.hosts if host.is_outlier]
        return sorted(every, key=lambda each: (not each[1].is_worse, each[1].chance))

    @cached_property
    def worse(self) -> list[str]:
        """The hosts that are worse than the fleet in some cell."""
        return list(dict.fromkeys(host.host for _, host in self.outliers if host.is_worse))

    @cached_property
    def other(self) -> list[str]:
        """The hosts that differ from the fleet in a cell of a study, which does not say which way is worse."""
        return list(dict.fromkeys(host.host for _, host in self.outliers if host.is_other))

    @property
    def named(self) -> list[str]:
        """The hosts that are worse, and those that differ in a study."""
        return self.worse or self.other

    @property
    def outcome(self) -> Outcome:
        if self.named:
            return Outcome.VIOLATED
        is_known = any(cell.factor is not None for cell in self.cells)
        return Outcome.HOLDS if is_known else Outcome.INCONCLUSIVE


def findings_of(measured: Mapping[str, Measured], failed: Mapping[str, str]) -> FleetFindings:
    """What hosts say together. TrialError if none was measured."""
    if not measured:
        why = "; ".join(failed.values()) or "it ended before the first host was measured"
        raise TrialError(f"no host was measured: {why}")
    readings = readings_of(measured.values())
    held = judging.outliers([(each.values, each.moderated) for each in readings], [each.sound for each in readings])
    cells = tuple(_cell(reading, chances) for reading, chances in zip(readings, held, strict=True))
    every = FleetFindings(cells, measured, failed)
    facts = [{**each.facts} for each in measured.values()]
    shared = sharing.shared(facts, [name in every.named for name in measured])
    return FleetFindings(cells, measured, failed, tuple(shared))


def readings_of(hosts: Iterable[Measured]) -> list[Reading]:
    """The cells in the order in which hosts have them."""
    by_name: dict[str, list[tuple[str, Cell]]] = {}
    for host in hosts:
        for cell in host.cells:
            by_name.setdefault(cell.name, []).append((host.host, cell))
    return [_reading(name, pairs) for name, pairs in by_name.items()]


def _reading(name: str, pairs: Sequence[tuple[str, Cell]]) -> Reading:
    cells = [cell for _, cell in pairs]
    values = np.log([cell.value for cell in cells])
    errors = np.array([error_of(cell) for cell in cells])
    blocks = np.array([float(cell.n) for cell in cells])
    hosts = tuple(host for host, _ in pairs)
    return Reading(name, cells[0].is_rate, cells[0].is_directed, hosts, values, errors, blocks)


def error_of(cell: Cell) -> float:
    """The standard error of a figure's logarithm, by its interval."""
    reach = 2 * student_reach(cell.level, cell.n - 1)
    return max(math.log(cell.high / cell.low) / reach, 1e-6)


def opened(measured: Mapping[str, Measured], least: float) -> set[str]:
    """The hosts of which further blocks may decide whether they are worse than the fleet in some cell, by `least`."""
    left, readings = set(), list(readings_of(measured.values()))
    for reading in readings:
        shares = np.array([measured[host].share for host in reading.hosts])
        flags = is_open(reading.values, reading.moderated, shares, len(readings), least)
        left |= {host for host, flag in zip(reading.hosts, flags, strict=True) if flag}
    return left


def _cell(reading: Reading, chances: Floats) -> FleetCell:
    if len(reading.hosts) < MIN_HOSTS:
        middle = float(np.median(reading.values))
        hosts = [
            _host(reading, place, float(reading.values[place]), float(reading.errors[place]), 1.0, middle)
            for place in range(len(reading.hosts))
        ]
        return FleetCell(reading.name, reading.is_rate, reading.is_directed, tuple(hosts))
    errors = reading.moderated
    sound = reading.sound
    fit, every = fitted(reading.values, errors), Posterior(reading.values, errors)
    unseen = _posterior(reading).predicted()
    centres, deviations = every.shrunk
    middle = float(np.median(reading.values[sound]))
    hosts = [
        _host(reading, place, float(centres[place]), float(deviations[place]), float(chances[place]), middle)
        for place in range(len(reading.hosts))
    ]
    factor = fit.contrast(np.ones(1)).mapped(math.exp)
    ends = math.exp(unseen[0]), math.exp(unseen[1])
    spread = math.expm1(fit.spread)
    return FleetCell(reading.name, reading.is_rate, reading.is_directed, tuple(hosts), factor, spread, ends)


def _host(reading: Reading, place: int, centre: float, deviation: float, chance: float, middle: float) -> HostCell:
    blocks = int(reading.blocks[place])
    reach = student_reach(0.95, blocks - 1)
    value, error = float(reading.values[place]), float(reading.errors[place])
    own = Estimate(value=value, low=value - reach * error, high=value + reach * error, n=blocks, method="of its run")
    low, high = centre - 1.96 * deviation, centre + 1.96 * deviation
    shrunk = Estimate(value=centre, low=low, high=high, n=blocks, method="drawn towards the fleet")
    ours, drawn = own.mapped(math.exp), shrunk.mapped(math.exp)
    return HostCell(reading.hosts[place], ours, drawn, chance, math.exp(middle), reading.is_directed)


def gated(
    measured: Mapping[str, Measured], canaries: Sequence[str], margin: float, before: Mapping[str, Measured] | None
) -> dict[str, Gated]:
    """Each cell of canaries against the rest; or of all hosts against an earlier record, host by host.

    UsageError if there is nothing to compare.
    """
    if before is not None:
        return _against_before(measured, before, margin)
    judged = {}
    for reading in readings_of(measured.values()):
        if not reading.is_directed:
            continue
        is_canary = np.array([host in canaries for host in reading.hosts])
        if 0 < is_canary.sum() < len(is_canary) and len(is_canary) > 2:
            judged[reading.name] = judging.gate(reading.values, reading.moderated, is_canary, margin)
    if not judged:
        said = "a gate needs canaries that were measured, and two other hosts; of a study it cannot say what is worse"
        raise UsageError(Problem(said, f"measured: {', '.join(measured)}", key="--canaries"))
    return judged


def _against_before(now: Mapping[str, Measured], before: Mapping[str, Measured], margin: float) -> dict[str, Gated]:
    earlier = {each.name: each for each in readings_of(before.values())}
    judged = {}
    for reading in readings_of(now.values()):
        other = earlier.get(reading.name)
        both = [host for host in reading.hosts if other is not None and host in other.hosts]
        if other is None or not reading.is_directed or len(both) < 2:
            continue
        new, old = ([each.hosts.index(host) for host in both] for each in (reading, other))
        errors = np.hypot(reading.moderated[new], other.moderated[old])
        judged[reading.name] = judging.paired(other.values[old], reading.values[new], errors, margin)
    if not judged:
        said = "the records have no cell of two or more hosts in common"
        raise UsageError(Problem(said, "give an earlier record of the same hosts and scenario", key="--before"))
    return judged


@dataclass(frozen=True)
class Admission:
    """A new host against a fleet. cells: that both have, by name.

    needed_s: how long the host has to be measured until a loss of the margin in any cell shows; infinite if hosts of
    the fleet differ too much for it.
    """

    host: Measured
    margin: float
    cells: Mapping[str, Admitted]
    needed_s: float

    @property
    def outcome(self) -> Outcome:
        return judging.joined([each.outcome for each in self.cells.values()])

    @property
    def shows(self) -> float:
        """The smallest loss that would have shown in every cell, as a share."""
        return max(each.shows for each in self.cells.values())


def admitted(host: Measured, fleet: Sequence[Measured], seconds: float, margin: float) -> Admission:
    """Each cell of a new host against the fleet's prediction. seconds: it was measured so long.

    TrialError if they have no cell in common.
    """
    own = {cell.name: cell for cell in host.cells}
    readings = [each for each in predicting(fleet) if each.name in own]
    if not readings:
        said = f"{host.host} and the fleet have no cell in common that {MIN_HOSTS} hosts measured"
        raise TrialError(f"{said}; measure the fleet with this scenario")
    judged, errors = {}, {}
    for each in readings:
        cell = own[each.name]
        # Few blocks say little about their own error, so it borrows from those of the fleet.
        every = moderated(np.append(each.errors, error_of(cell)), np.append(each.blocks, float(cell.n)))
        errors[each.name] = float(every[-1])
        posterior, value = _posterior(each), math.log(cell.value)
        judged[each.name] = judging.admit(posterior, value, errors[each.name], margin, len(readings))
    needed = needed_s(readings, {name: error * math.sqrt(seconds) for name, error in errors.items()}, margin)
    return Admission(host, margin, judged, needed)


def predicting(fleet: Iterable[Measured]) -> list[Reading]:
    """The cells that enough hosts have measured to predict another one."""
    return [each for each in readings_of(fleet) if each.is_directed and len(each.hosts) >= MIN_HOSTS]


def usual_errors(fleet: Sequence[Reading], hosts: Mapping[str, Measured], seconds: float) -> dict[str, float]:
    """The median standard error of hosts that measure for one second, by cell. seconds: of a whole host."""
    # The error of a mean falls with the root of its time.
    return {
        each.name: float(np.median(each.moderated * np.sqrt([seconds * hosts[host].share for host in each.hosts])))
        for each in fleet
    }


def needed_s(fleet: Sequence[Reading], errors: Mapping[str, float], margin: float) -> float:
    """How long another host has to be measured until a loss of the margin shows in every cell of the fleet.

    errors: its standard errors after one second, by cell. Infinite if the fleet's hosts differ too much.
    """
    exact = {each.name: judging.exact(_posterior(each), margin, len(fleet)) for each in fleet}
    return judging.RESERVE * max((errors[name] / error) ** 2 if error else math.inf for name, error in exact.items())


def _posterior(reading: Reading) -> Posterior:
    return Posterior(reading.values[reading.sound], reading.moderated[reading.sound])
