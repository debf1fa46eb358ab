"""Power control by Redfish (DMTF DSP0266): PowerState and ComputerSystem.Reset of one system."""

from __future__ import annotations

import base64
import http.client
import json
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partywall.errors import TrialError
from partywall.model.cluster import Control

TIMEOUT_S = 30.0
STATES = {"On": True, "PoweringOff": True, "Paused": True, "PoweringOn": True, "Off": False}
"""PowerState of DSP0268, and whether the system may run."""


@dataclass(frozen=True)
class Redfish:
    """One system of a Redfish service. A success code proves nothing, so the manager polls `is_on`."""

    address: str
    system: str
    user: str | None = None
    password_file: str | None = None

    def switch_on(self) -> None:
        self._reset("On")

    def switch_off(self) -> None:
        """Off at once: its guests have left, and the manager has checked that."""
        self._reset("ForceOff")

    def is_on(self) -> bool:
        said = self._call(self._path()).get("PowerState")
        if not isinstance(said, str) or said not in STATES:
            # An answer that is not understood must not pass for "off".
            raise TrialError(f"Redfish at {self.address} gives PowerState {said!r}, which is not known")
        return STATES[said]

    def _path(self) -> str:
        return f"/redfish/v1/Systems/{self.system}"

    def _reset(self, kind: str) -> None:
        self._call(f"{self._path()}/Actions/ComputerSystem.Reset", {"ResetType": kind})

    def _call(self, path: str, content: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if content is None else json.dumps(content).encode()
        headers = {"Content-Type": "application/json", **self._authorization()}
        request = urllib.request.Request(self.address.rstrip("/") + path, data, headers)  # noqa: S310 - http(s), checked
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - see above
                body = answer.read()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise TrialError(f"Redfish at {self.address}: {error or type(error).__name__}") from None
        try:
            return dict(json.loads(body)) if body else {}
        except (ValueError, TypeError):
            raise TrialError(f"Redfish at {self.address} answered with something other than a JSON object") from None

    def _authorization(self) -> dict[str, str]:
        if self.user is None or self.password_file is None:
            return {}
        try:
            password = Path(self.password_file).read_text(encoding="utf-8").partition("\n")[0]
        except OSError as error:
            raise TrialError(f"{self.password_file} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise TrialError(f"{self.password_file} is not UTF-8") from None
        token = base64.b64encode(f"{self.user}:{password}".encode()).decode()
        return {"Authorization": f"Basic {token}"}


def of(control: Control) -> Redfish:
    """The power control that a checked document describes."""
    return Redfish(control.address or "", control.system or "", control.user, control.password_file)
