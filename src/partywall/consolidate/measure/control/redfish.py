"""Power control by Redfish (DMTF DSP0266): PowerState and ComputerSystem.Reset of one system."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from partywall.consolidate.document import Control
from partywall.errors import TrialError
from partywall.power import bmc

TIMEOUT_S = 30.0
STATES = {"On": True, "PoweringOff": True, "Paused": True, "PoweringOn": True, "Off": False}
"""PowerState of DSP0268, and whether the system may run."""


@dataclass(frozen=True)
class Redfish:
    """One system of a Redfish service. A success code proves nothing, so the manager polls `is_on`.

    tls, certificate: as for `partywall.power.bmc.Redfish`.
    """

    address: str
    system: str
    user: str | None = None
    password_file: str | None = None
    tls: str = ""
    certificate: str = ""

    def switch_on(self) -> None:
        self._reset("On")

    def switch_off(self) -> None:
        """Off at once: its guests have left, and the manager has checked that."""
        self._reset("ForceOff")

    def is_on(self) -> bool:
        said = self._system(self._service()).get("PowerState")
        if not isinstance(said, str) or said not in STATES:
            # An answer that is not understood must not pass for "off".
            raise TrialError(f"Redfish at {self.address} gives PowerState {said!r}, which is not known")
        return STATES[said]

    def _reset(self, kind: str) -> None:
        service = self._service()
        match self._system(service):
            case {"Actions": {"#ComputerSystem.Reset": {"target": str(target)}}}:
                pass
            case _:
                target = f"{self._path()}/Actions/ComputerSystem.Reset"
        try:
            service.post(target, {"ResetType": kind})
        except bmc.ControllerError as error:
            raise self._failed(error) from None

    def _system(self, service: bmc.Redfish) -> dict[str, Any]:
        try:
            return service.get(self._path())
        except bmc.ControllerError as error:
            raise self._failed(error) from None

    def _path(self) -> str:
        return f"/redfish/v1/Systems/{self.system}"

    def _failed(self, error: bmc.ControllerError) -> TrialError:
        return TrialError(f"Redfish at {self.address}: {error}")

    def _service(self) -> bmc.Redfish:
        """The password is read each time, so that it can be changed while the manager runs."""
        password = bmc.first_line(self.password_file) if self.user and self.password_file else ""
        user = self.user or ""
        return bmc.Redfish(
            self.address, user, password, timeout_s=TIMEOUT_S, tls=self.tls, certificate=self.certificate
        )


def of(control: Control) -> Redfish:
    """The power control that a checked document describes."""
    tls, certificate = control.tls or "", control.certificate or ""
    return Redfish(control.address or "", control.system or "", control.user, control.password_file, tls, certificate)
