"""Domains that a run made or changed, and how the next start finds what a killed run left of that.

Domains of ours are found by their names; what the user's own were like before is kept in the run's state folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
from collections.abc import Iterator
from typing import Any

from partywall.errors import CapabilityError, TrialError
from partywall.sandbox.label import Label
from partywall.sandbox.libvirt.domain import PREFIX
from partywall.sandbox.libvirt.library import connect, library
from partywall.sandbox.libvirt.tuning import Before, Tuner

FILE = "domains.json"
Entry = dict[str, Any]


def domain_name(label: Label, sandbox: str) -> str:
    """What a domain of ours is called."""
    return f"{PREFIX}{label.run}-{sandbox}"


def note(label: Label, uri: str, domain: str, before: Before | None = None) -> None:
    """Remembers a domain that is about to be made, or changed if `before` is given."""
    with _entries(label) as entries:
        if not any((entry["uri"], entry["domain"]) == (uri, domain) for entry in entries):
            kept = None if before is None else dataclasses.asdict(before)
            entries.append({"uri": uri, "domain": domain, "before": kept})


def forget(label: Label, uri: str, domain: str) -> None:
    """It is gone, or as it was."""
    with _entries(label) as entries:
        entries[:] = [entry for entry in entries if (entry["uri"], entry["domain"]) != (uri, domain)]


@contextlib.contextmanager
def _entries(label: Label) -> Iterator[list[Entry]]:
    """Read, and written again whole; sandboxes may come up side by side."""
    label.state.mkdir(parents=True, exist_ok=True)
    with (label.state / FILE).open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        entries: list[Entry] = json.loads(text) if text else []
        yield entries
        file.seek(0)
        file.truncate()
        file.write(json.dumps(entries))


def remove(label: Label) -> tuple[list[str], list[str]]:
    """Takes a run's domains away and puts the user's own back as they were: (what was done, what could not be)."""
    try:
        entries: list[Entry] = json.loads((label.state / FILE).read_text())
    except (OSError, ValueError):
        return [], []
    done: list[str] = []
    left: list[str] = []
    for entry in entries:
        what = f"domain {entry['domain']} of {entry['uri']}"
        try:
            done += [what] if _undo(entry) else []
        except (CapabilityError, TrialError) as error:
            left.append(f"{what} ({error})")
    return done, left


def _undo(entry: Entry) -> bool:
    """Whether there was something to undo."""
    libvirt = library()
    connection = connect(entry["uri"])
    try:
        domain = connection.lookupByName(entry["domain"])
        if entry["before"] is not None:
            Tuner(connection, domain, entry["domain"]).restore(Before(**entry["before"]))
        else:
            domain.destroy()
    except libvirt.libvirtError as error:
        # Gone with its owner's connection or by itself, perhaps between the look and the act.
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return False
        raise TrialError(str(error)) from error
    finally:
        connection.close()
    return True
