"""NUT: the real power of a UPS or an outlet, from `upsd` of Network UPS Tools.

nut://UPS@HOST reads `ups.realpower`, nut://UPS@HOST/VARIABLE another variable in watts, such as outlet.1.realpower.
Other variables are no watts: `ups.load` is a percentage, `ups.power` is apparent power in VA.
Protocol: networkupstools.org, developer guide, "Network protocol information".
"""

from __future__ import annotations

import re
import socket

from partywall.host import Host
from partywall.power.address import Address, unusable
from partywall.power.meters.base import TIMEOUT_S, MeterError, Place, now_ns, number
from partywall.power.values import MeterFacts, Reading

SCHEMES = ("nut",)
MOST_BYTES = 4096
REAL = "realpower"
"""The end of the names of variables in watts."""
WORD = re.compile(r"[\w.\-]+")


class Nut:
    """One variable, over one connection that is opened again after a failure."""

    def __init__(self, address: Address) -> None:
        self._place = (address.host, address.port or 3493)
        self._variable = address.path or "ups.realpower"
        self._request = f"GET VAR {address.user} {self._variable}"
        self._socket: socket.socket | None = None
        self.facts = MeterFacts(meter=address.text, step=1.0, covers="what the UPS or PDU feeds", about=self._variable)

    def read(self) -> Reading:
        begin_ns = now_ns()
        try:
            answer = self._answer()
        except TimeoutError:
            self.close()
            raise MeterError("silent", f"upsd did not answer within {TIMEOUT_S:g} s") from None
        except OSError as error:
            self.close()
            raise MeterError("gone", f"upsd: {error.strerror or error}") from None
        end_ns = now_ns()
        watts = watts_of(answer, self._request)
        middle = (begin_ns + end_ns) // 2
        return Reading(meter=self.facts.meter, time_ns=middle, watts=watts, took_ns=end_ns - begin_ns)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _answer(self) -> str:
        if self._socket is None:
            self._socket = socket.create_connection(self._place, TIMEOUT_S)
        self._socket.sendall(f"{self._request}\n".encode())
        received = b""
        while not received.endswith(b"\n"):
            if not (more := self._socket.recv(MOST_BYTES)) or len(received) > MOST_BYTES:
                raise ConnectionResetError(0, "the connection was closed")
            received += more
        return received.decode(errors="replace").strip()


def watts_of(answer: str, request: str) -> float:
    """The value of an answer such as VAR pdu1 ups.realpower "212". MeterError if it has none."""
    prefix = request.removeprefix("GET ")
    if not answer.startswith(f"{prefix} "):
        raise MeterError("garbage", f"upsd answered {answer[:60]!r}")
    return number(answer.removeprefix(prefix).strip().strip('"'), prefix)


def check(address: Address) -> None:
    address.option()
    if not (address.host and WORD.fullmatch(address.user)) or (address.path and not WORD.fullmatch(address.path)):
        raise unusable(address.text, "it needs a UPS and a host", "give for example nut://ups1@localhost")
    if address.path and address.path.rpartition(".")[2] != REAL:
        remedy = "give a variable that ends in realpower, such as outlet.1.realpower"
        raise unusable(address.text, f"{address.path} is not in watts", remedy)


def make(address: Address, host: Host) -> Nut:
    del host
    return Nut(address)


def find(host: Host) -> list[Place]:
    del host
    return [Place("nut://UPS@HOST", "UPS or outlet that Network UPS Tools reads")]
