"""The label with which an owner agrees to pulses. Only reads.

Who names no suspect may not know what depends on it. A unit carries the label in a section that systemd leaves to
others: `[X-Partywall]` with `Blame=yes`, in its file or a drop-in. A pod has the label `partywall/blame: "yes"`, which
the node's container engine knows; `crictl` asks it.
"""

from __future__ import annotations

import configparser
import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

from partywall.blame.measure.owners import owner_of
from partywall.host.systemd import Systemd, SystemdError

SECTION, KEY = "X-Partywall", "Blame"
POD_LABEL = "partywall/blame"
POD = re.compile(r"pod([0-9a-f]{8}([-_])[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12}|[0-9a-f]{32})", re.ASCII)
"""The group of a pod has its UID in its name; systemd's slices have _ for -."""
CRICTL_S = 10.0
ASKED = "name it, or use --any"


class Labels:
    """The labels on this host. Those of pods are read once, when the first one is asked for."""

    def __init__(self, *, has_systemd: bool) -> None:
        self._has_systemd = has_systemd

    def lacking(self, cgroup: str) -> str:
        """Why a group must not be pulsed unless it is named; empty if it may be."""
        if "kubepods" in cgroup:
            return self._lacking_pod(cgroup)
        who, unit = owner_of(cgroup, has_systemd=self._has_systemd)
        if who != "systemd":
            return ""
        with contextlib.suppress(SystemdError), Systemd() as manager:
            files = [manager.get(unit, "FragmentPath", "Unit"), *manager.get(unit, "DropInPaths", "Unit")]
            if is_labelled(text for file in files for text in _content(file)):
                return ""
        return f"has no [{SECTION}] {KEY}=yes in its unit; {ASKED}"

    def _lacking_pod(self, cgroup: str) -> str:
        pod = POD.search(cgroup)
        if pod is None:
            return f"is no pod of its own; {ASKED}"
        labelled, why = self._pods
        if why:
            return f"is a pod whose labels are not known: {why}; {ASKED}"
        return "" if pod[1].replace("_", "-") in labelled else f'is a pod without {POD_LABEL}: "yes"; {ASKED}'

    @cached_property
    def _pods(self) -> tuple[frozenset[str], str]:
        """UIDs of pods with the label, as the container engine knows them now; or why they are not known."""
        if (crictl := shutil.which("crictl")) is None:
            return frozenset(), "there is no crictl"
        argv = [crictl, "pods", "--state", "ready", "-o", "json"]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=CRICTL_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return frozenset(), f"crictl does not answer: {error}"
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["it says nothing"]
            return frozenset(), f"crictl fails: {lines[-1][:200]}"
        return labelled_pods(done.stdout)


def labelled_pods(text: str) -> tuple[frozenset[str], str]:
    """UIDs of the pods with the label in what `crictl pods -o json` prints; or why they are not known. Pure."""
    try:
        items = json.loads(text)["items"] or []
        agreed = [each for each in items if str((each.get("labels") or {}).get(POD_LABEL)).lower() in ("yes", "true")]
        return frozenset(str(each["metadata"]["uid"]) for each in agreed), ""
    except (ValueError, KeyError, TypeError, AttributeError):
        return frozenset(), "crictl printed no list of pods"


def _content(file: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield Path(file).read_text(encoding="utf-8", errors="replace")


def is_labelled(texts: Iterable[str]) -> bool:
    """True if the files of a unit carry the label. A later file overrides earlier ones. Pure."""
    found = False
    for text in texts:
        unit = configparser.RawConfigParser(strict=False, allow_no_value=True, delimiters=("=",))
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        with contextlib.suppress(configparser.Error, ValueError):
            unit.read_string(text)
            found = unit.getboolean(SECTION, KEY, fallback=found)
    return found
