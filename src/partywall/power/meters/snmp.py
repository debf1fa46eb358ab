"""SNMP: an object of a power distribution unit that holds watts.

snmp://HOST/OID is version 2c, snmp://USER@HOST/OID version 3 with authentication. The community, or the password, is
taken like other passwords (default: public). Option `scale`: watts of one unit, such as 0.1 for tenths of watts.
Needs the library puresnmp (pip install 'partywall[power]').
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
from typing import Any

from partywall.host import Host
from partywall.power.address import Address, unusable
from partywall.power.meters.base import TIMEOUT_S, MeterError, Place, now_ns, number, password_of
from partywall.power.values import FaultKind, MeterFacts, Reading

SCHEMES = ("snmp",)
LIBRARY = "pip install 'partywall[power]'"
OID = re.compile(r"\.?\d+(\.\d+)+")


class Snmp:
    """One object. Each reading is one request in an event loop of its own."""

    def __init__(self, address: Address, scale: float, password: str) -> None:
        self._host, self._port = address.host, address.port or 161
        self._oid, self._scale = address.path.lstrip("."), scale
        self._user, self._password = address.user, password
        self._loop = asyncio.new_event_loop()
        self._client: Any = None
        self.facts = MeterFacts(meter=address.text, step=scale, about=f"object {self._oid}")

    def read(self) -> Reading:
        begin_ns = now_ns()
        try:
            value = self._loop.run_until_complete(asyncio.wait_for(self._get(), TIMEOUT_S))
        except MeterError:
            raise
        except TimeoutError:
            raise MeterError("silent", f"{self._host} did not answer within {TIMEOUT_S:g} s") from None
        except Exception as error:  # noqa: BLE001 - the library raises many kinds for an agent's answer
            kind: FaultKind = "silent" if type(error).__name__ == "Timeout" else "gone"
            raise MeterError(kind, f"{self._host}: {type(error).__name__}: {error}") from None
        end_ns = now_ns()
        watts = number(value if isinstance(value, int | float) else str(value), self._oid, most=1e9) * self._scale
        middle = (begin_ns + end_ns) // 2
        return Reading(
            meter=self.facts.meter, time_ns=middle, watts=number(watts, self._oid), took_ns=end_ns - begin_ns
        )

    def close(self) -> None:
        self._loop.close()

    async def _get(self) -> Any:
        if self._client is None:
            self._client = self._connected()
        return await self._client.get(self._oid)

    def _connected(self) -> Any:
        from puresnmp import V2C, V3, Auth, Client, PyWrapper  # noqa: PLC0415 - optional

        credentials: Any = V3(self._user, auth=Auth(self._password.encode(), "sha1")) if self._user else None
        return PyWrapper(Client(self._host, credentials or V2C(self._password), port=self._port))


def check(address: Address) -> None:
    address.option("scale", "password")
    if not address.host or not OID.fullmatch(address.path):
        raise unusable(address.text, "it needs a host and an object", "give for example snmp://pdu/1.3.6.1.4.1.318.1.1")
    scale_of(address)


def scale_of(address: Address) -> float:
    """Watts of one unit of the object."""
    return address.number("scale", address.options.get("scale", "1"), least=1e-9)


def make(address: Address, host: Host) -> Snmp:
    del host
    if importlib.util.find_spec("puresnmp") is None:
        raise unusable(address.text, "the library puresnmp is not installed", LIBRARY)
    return Snmp(address, scale_of(address), password_of(address, None if address.user else "public"))


def find(host: Host) -> list[Place]:
    del host
    there = importlib.util.find_spec("puresnmp") is not None
    missing = "" if there else "the library puresnmp is not installed"
    return [Place("snmp://HOST/OID", "power distribution unit", missing, "" if there else LIBRARY)]
