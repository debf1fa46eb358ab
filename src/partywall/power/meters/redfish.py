"""Redfish: the power of a chassis as its management controller reports it.

redfish://USER@HOST/Chassis/1 reads the new form (`EnvironmentMetrics`, or the power supplies of `PowerSubsystem`) and
else the old one (`Power`). Options: `tls=insecure` for a certificate that cannot be checked, `tls=off` for plain HTTP.
DMTF DSP0266, DSP0268.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.request
from typing import Any

from partywall.host import Host
from partywall.model.meter import Address, unusable
from partywall.model.power import MeterFacts, Reading
from partywall.power.meters.base import TIMEOUT_S, MeterError, Place, now_ns, number, password_of

SCHEMES = ("redfish",)
MOST_BYTES = 1 << 20


class Redfish:
    """One chassis. The form of its power reading is looked up at the first reading."""

    def __init__(self, address: Address, password: str) -> None:
        tls = address.options.get("tls", "")
        port = f":{address.port}" if address.port else ""
        self._chassis = f"/redfish/v1/{address.path or 'Chassis/1'}"
        self._base = f"{'http' if tls == 'off' else 'https'}://{address.host}{port}"
        self._context = _unverified() if tls == "insecure" else None
        credentials = base64.b64encode(f"{address.user}:{password}".encode()).decode()
        self._headers = {"Accept": "application/json"} | (
            {"Authorization": f"Basic {credentials}"} if address.user else {}
        )
        self._places: tuple[str, ...] = ()
        self.facts = MeterFacts(meter=address.text, step=1.0, about=self._base + self._chassis)

    def read(self) -> Reading:
        begin_ns = now_ns()
        watts = self._watts()
        end_ns = now_ns()
        middle = (begin_ns + end_ns) // 2
        return Reading(meter=self.facts.meter, time_ns=middle, watts=watts, took_ns=end_ns - begin_ns)

    def close(self) -> None:
        pass

    def _watts(self) -> float:
        if not self._places:
            self._places = self._look_up()
        return sum(watts_of(self._get(place), place) for place in self._places)

    def _look_up(self) -> tuple[str, ...]:
        """The resources whose readings add up to the power of the chassis."""
        for place in (f"{self._chassis}/EnvironmentMetrics", f"{self._chassis}/Power"):
            if is_reading(self._get(place, needed=False)):
                return (place,)
        supplies = self._get(f"{self._chassis}/PowerSubsystem/PowerSupplies", needed=False).get("Members", ())
        places = tuple(f"{supply['@odata.id']}/Metrics" for supply in supplies if "@odata.id" in supply)
        if places and all(is_reading(self._get(place, needed=False)) for place in places):
            return places
        raise MeterError("garbage", f"{self._base}{self._chassis} reports no power")

    def _get(self, path: str, *, needed: bool = True) -> dict[str, Any]:
        request = urllib.request.Request(self._base + path, headers=self._headers)  # noqa: S310 - http or https only
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self._context) as answer:  # noqa: S310
                document = json.loads(answer.read(MOST_BYTES))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == http.client.NOT_FOUND and not needed:
                return {}
            why = "user or password is wrong" if error.code == http.client.UNAUTHORIZED else f"HTTP {error.code}"
            raise MeterError("gone", f"{path}: {why}") from None
        except TimeoutError:
            raise MeterError("silent", f"{path}: no answer within {TIMEOUT_S:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            silent = "timed out" in str(error)
            raise MeterError("silent" if silent else "gone", f"{path}: {error}") from None
        except ValueError:
            raise MeterError("garbage", f"{path} is not JSON") from None
        if not isinstance(document, dict):
            raise MeterError("garbage", f"{path} is not a JSON object")
        return document


def _unverified() -> ssl.SSLContext:
    """TLS without checking the certificate, as management controllers with their own certificates need."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def is_reading(resource: dict[str, Any]) -> bool:
    """True if a resource has a power reading."""
    return raw(resource) is not None


def watts_of(resource: dict[str, Any], place: str) -> float:
    """The watts of a resource. MeterError if it has none."""
    value = raw(resource)
    if value is None:
        raise MeterError("garbage", f"{place} has no power reading")
    return number(value, place)


def raw(resource: dict[str, Any]) -> Any:
    """The reading in any of the three forms; None if there is none."""
    match resource:
        case {"PowerWatts": {"Reading": value}} | {"InputPowerWatts": {"Reading": value}}:
            return value
        case {"PowerControl": [{"PowerConsumedWatts": value}, *_]}:
            return value
    return None


def check(address: Address) -> None:
    address.option("tls", "password")
    tls = address.options.get("tls", "")
    if tls not in ("", "insecure", "off"):
        raise unusable(address.text, f"tls={tls} is not known", "give tls=insecure or tls=off")
    if not address.host:
        raise unusable(address.text, "it names no host", "give for example redfish://admin@bmc/Chassis/1")


def make(address: Address, host: Host) -> Redfish:
    del host
    return Redfish(address, password_of(address) if address.user else "")


def find(host: Host) -> list[Place]:
    del host
    return [Place("redfish://USER@HOST/Chassis/1", "management controller over HTTPS")]
