"""The host-side interface of each sandbox, so that a guard's policy or a trace can refer to it by the sandbox."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from partywall.files import write_whole
from partywall.host.label import Label, state_root
from partywall.sandbox.networks import NETNS

FOLDER = "vifs"


@dataclass(frozen=True)
class HostVif:
    """An interface by name, and its namespace."""

    run: str
    interface: str
    namespace: str

    @property
    def path(self) -> Path:
        return NETNS / self.namespace


def note(label: Label, name: str, namespace: str, interface: str) -> None:
    """Records the interface of the sandbox called `name`."""
    folder = label.state / FOLDER
    folder.mkdir(exist_ok=True)
    write_whole(folder / f"{name}.json", json.dumps({"namespace": namespace, "interface": interface}))


def forget(label: Label, name: str) -> None:
    """Removes the record of a sandbox that no longer exists."""
    (label.state / FOLDER / f"{name}.json").unlink(missing_ok=True)


def find(name: str) -> list[HostVif]:
    """Interfaces of sandboxes of all runs with this name, RUN/NAME or NAME, whose namespace exists."""
    run, _, own = name.rpartition("/")
    vifs = []
    for file in sorted(state_root().glob(f"{run or '*'}/{FOLDER}/{own}.json")):
        content = json.loads(file.read_text())
        vif = HostVif(file.parts[-3], content["interface"], content["namespace"])
        if vif.path.exists():
            vifs.append(vif)
    return vifs
