"""Redfish: the power of a chassis as its management controller reports it.

redfish://USER@HOST/Chassis/1 reads the new form (`EnvironmentMetrics`), the old one (`Power`, with the figure that
Fujitsu's controllers have in its `Oem` part), or the power supplies of `PowerSubsystem`: the first that has a figure. A
longer path names one resource, such as redfish://admin@bmc/Chassis/1/Sensors/total_power. Options: `certificate=FILE`
and `tls=insecure` as in `partywall.power.bmc`, `tls=off` for plain HTTP, `password`. DMTF DSP0266, DSP0268.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from typing import Any

from partywall.host import Host
from partywall.power import bmc
from partywall.power.address import Address, unusable
from partywall.power.meters.base import TIMEOUT_S, MeterError, Place, now_ns, number, password_of
from partywall.power.values import MeterFacts, Reading

SCHEMES = ("redfish",)
NOT_THERE = ("Absent", "UnavailableOffline")
"""States (DSP0268, `Status`) of parts that have no power to measure, whatever figure is beside them."""
MOST_PAGES = 20
SUPPLIES_NS = 60_000_000_000
"""How long power supplies count as the only ones: one that is put in later would be missing from the sum."""


class DeniedError(MeterError):
    """A controller that did not accept the user or the password."""


class Redfish:
    """One chassis. The form of its power reading is looked up at the first reading, and after each one that failed."""

    def __init__(self, address: Address, password: str) -> None:
        tls, host = address.options.get("tls", ""), f"[{address.host}]" if ":" in address.host else address.host
        base = f"{'http' if tls == 'off' else 'https'}://{host}" + (f":{address.port}" if address.port else "")
        certificate = address.options.get("certificate", "")
        self._service = bmc.Redfish(base, address.user, password, timeout_s=TIMEOUT_S, tls=tls, certificate=certificate)
        path = address.path or "Chassis/1"
        self._resource, self._is_chassis = f"/redfish/v1/{path}", path.count("/") < 2
        self._places: tuple[str, ...] = ()
        # Until when they are all that there are; None for a place that measures the whole chassis.
        self._until_ns: int | None = None
        self.facts = MeterFacts(meter=address.text, step=1.0, about=base + self._resource)

    def read(self) -> Reading:
        begin_ns = now_ns()
        watts = self._watts()
        end_ns = now_ns()
        middle = (begin_ns + end_ns) // 2
        return Reading(meter=self.facts.meter, time_ns=middle, watts=watts, took_ns=end_ns - begin_ns)

    def close(self) -> None:
        pass

    def _watts(self) -> float:
        try:
            if not self._places:
                self._places = self._look_up()
            elif self._until_ns is not None and now_ns() >= self._until_ns:
                self._places = self._supplies()
            return sum(self._watts_at(place) for place in self._places)
        except MeterError:
            # Perhaps a part was taken out, or has another name since its firmware was replaced.
            self._places, self._until_ns = (), None
            raise

    def _look_up(self) -> tuple[str, ...]:
        """The resources whose readings add up to the power of the chassis."""
        if not self._is_chassis:
            return (self._measured(self._resource),)
        ways: tuple[Callable[[], tuple[str, ...]], ...] = (
            lambda: (self._measured(f"{self._resource}/EnvironmentMetrics"),),
            lambda: (self._measured(f"{self._resource}/Power"),),
            self._supplies,
        )
        lacking: list[MeterError] = []
        for way in ways:
            try:
                return way()
            except DeniedError:
                # Not tried again: after a few wrong passwords, controllers lock the user out.
                raise
            except MeterError as error:
                # Whatever it answers, it may have what comes next. Some drop the connection for what they lack.
                lacking.append(error)
            unreached = [error for error in lacking if error.kind != "garbage"]
            if len(unreached) > 1:
                raise unreached[0]
        kind = unreached[0].kind if unreached else "garbage"
        said = "; ".join(map(str, lacking))
        raise MeterError(kind, f"{self.facts.about} reports no power{self._others()}: {said}")

    def _others(self) -> str:
        """A hint at the controller's chassis, if the named one is not among them."""
        try:
            known = [self._linked(each) for each in self._members("/redfish/v1/Chassis")]
        except MeterError:
            return ""
        if self._resource in known or not known:
            return ""
        return f" (there is {', '.join(place.removeprefix('/redfish/v1/') for place in known)[:200]})"

    def _measured(self, place: str) -> str:
        """The resource with the figure of a place: itself, or the sensor to which it refers. MeterError if none has."""
        resource = self._get(place)
        match resource:
            case {"PowerWatts": {"Reading": _}}:
                pass
            case {"PowerWatts": {"DataSourceUri": str(sensor)} | {"@odata.id": str(sensor)}}:
                place, resource = sensor, self._get(sensor)
        watts_of(resource, place)
        return place

    def _supplies(self) -> tuple[str, ...]:
        """The metrics of all power supplies. MeterError if one that is there has no figure: the sum would be short."""
        places = []
        for member in self._members(f"{self._resource}/PowerSubsystem/PowerSupplies"):
            supply = self._get(self._linked(member))
            if not _is_there(supply):
                continue
            place = self._linked(supply.get("Metrics"), f"{self._linked(member)}/Metrics")
            self._watts_at(place)
            places.append(place)
        if not places:
            raise MeterError("garbage", f"{self._resource}/PowerSubsystem has no power supplies")
        self._until_ns = now_ns() + SUPPLIES_NS
        return tuple(places)

    def _members(self, collection: str) -> Iterator[Any]:
        """All members of a collection, which may come in pages."""
        for _ in range(MOST_PAGES):
            page = self._get(collection)
            members = page.get("Members")
            yield from members if isinstance(members, list) else ()
            match page:
                case {"Members@odata.nextLink": str(following)}:
                    collection = following
                case _:
                    return

    @staticmethod
    def _linked(link: Any, otherwise: str | None = None) -> str:
        """The path of a link. MeterError if it has none, and there is no other."""
        match link:
            case {"@odata.id": str(path)}:
                return path.rstrip("/")
        if otherwise is None:
            raise MeterError("garbage", f"a link has no @odata.id: {str(link)[:60]}")
        return otherwise

    def _watts_at(self, place: str) -> float:
        return watts_of(self._get(place), place)

    def _get(self, path: str) -> dict[str, Any]:
        try:
            return self._service.get(path)
        except bmc.ControllerError as error:
            fault = DeniedError if error.status == http.client.UNAUTHORIZED else MeterError
            raise fault(error.kind, str(error)) from None


def watts_of(resource: dict[str, Any], place: str) -> float:
    """The watts of a resource. MeterError if it has none.

    A controller may list the server beside its parts (processors, memory) without saying which entry includes the
    others. A part takes less than the whole, so the largest figure counts, and entries are not added.
    """
    wrong = MeterError("garbage", f"{place} has no power reading")
    for alternatives in _figures(resource):
        watts = []
        for figure in alternatives:
            try:
                watts.append(number(figure, place))
            except MeterError as error:
                wrong = error
        if watts:
            return max(watts)
    raise wrong


def _figures(resource: dict[str, Any]) -> Iterator[list[Any]]:
    """The figures of a resource in each form that it may have, most trusted form first. Parts without one are left out.

    `Power` has the list PowerControl; old controllers of HPE repeat its figure outside, and those of Fujitsu have it
    in `Oem` alone.
    """
    match resource:
        case {"PowerWatts": {"Reading": figure}} | {"InputPowerWatts": {"Reading": figure}}:
            yield _known(figure)
        case {"Reading": figure, "ReadingUnits": "W"}:
            yield _known(figure) if _is_there(resource) else []
    match resource:
        case {"PowerControl": list(entries)}:
            there = (entry for entry in entries if isinstance(entry, dict) and _is_there(entry))
            yield _known(*(entry.get("PowerConsumedWatts") for entry in there))
    match resource:
        case {"PowerConsumedWatts": figure}:
            yield _known(figure)
    match resource:
        case {"Oem": dict(vendors)}:
            for vendor in vendors.values():
                match vendor:
                    case {"ChassisPowerConsumption": {"CurrentPowerConsumptionW": figure}}:
                        yield _known(figure)


def _known(*figures: Any) -> list[Any]:
    return [figure for figure in figures if figure is not None]


def _is_there(part: dict[str, Any]) -> bool:
    match part:
        case {"Status": {"State": state}}:
            return state not in NOT_THERE
    return True


def check(address: Address) -> None:
    address.option("tls", "certificate", "password")
    tls = address.options.get("tls", "")
    if tls not in ("", "insecure", "off"):
        raise unusable(address.text, f"tls={tls} is not known", "give tls=insecure or tls=off")
    if tls and "certificate" in address.options:
        raise unusable(address.text, f"with tls={tls} no certificate is checked", "leave out tls, or certificate")
    if not address.host:
        raise unusable(address.text, "it names no host", "give for example redfish://admin@bmc/Chassis/1")


def make(address: Address, host: Host) -> Redfish:
    del host
    return Redfish(address, password_of(address) if address.user else "")


def find(host: Host) -> list[Place]:
    del host
    return [Place("redfish://USER@HOST/Chassis/1", "management controller over HTTPS")]
