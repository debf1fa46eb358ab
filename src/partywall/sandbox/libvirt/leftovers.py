"""Domains that a run created or changed, and how the next start finds those of a killed run.

Created domains are found by their names. The original settings of the user's domains are kept in the run's state
folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
from collections.abc import Iterator
from typing import Any

from partywall.errors import CapabilityError, TrialError
from partywall.files import write_whole
from partywall.host.label import Label
from partywall.sandbox.libvirt.domain import PREFIX
from partywall.sandbox.libvirt.library import connect, library
from partywall.sandbox.libvirt.tuning import Before, Tuner

FILE = "domains.json"
Entry = dict[str, Any]


def domain_name(label: Label, sandbox: str) -> str:
    """The name of a created domain."""
    return f"{PREFIX}{label.run}-{sandbox}"


def note(label: Label, uri: str, domain: str) -> None:
    """Records a domain that will be created."""
    with _entries(label) as entries:
        if _known(entries, uri, domain) is None:
            entries.append({"uri": uri, "domain": domain, "before": None})


def note_before(label: Label, uri: str, domain: str, now: Before) -> Before:
    """Records the settings of a user's domain before they are changed, and returns them.

    If an earlier turn could not restore them, the recorded settings are kept, because the current ones are not the
    original.
    """
    with _entries(label) as entries:
        known = _known(entries, uri, domain)
        if known is not None and (before := Before(**known["before"])).is_of(now):
            return before
        entries[:] = [entry for entry in entries if entry is not known]
        entries.append({"uri": uri, "domain": domain, "before": dataclasses.asdict(now)})
    return now


def _known(entries: list[Entry], uri: str, domain: str) -> Entry | None:
    return next((entry for entry in entries if (entry["uri"], entry["domain"]) == (uri, domain)), None)


def forget(label: Label, uri: str, domain: str) -> None:
    """Removes the note of a domain that no longer exists or has been restored."""
    with _entries(label) as entries:
        entries[:] = [entry for entry in entries if (entry["uri"], entry["domain"]) != (uri, domain)]


@contextlib.contextmanager
def _entries(label: Label) -> Iterator[list[Entry]]:
    """Reads the notes, and replaces them atomically, so that a kill leaves the previous ones.

    Sandboxes may start in parallel, so a lock is held, on a file that is never replaced.
    """
    label.state.mkdir(parents=True, exist_ok=True)
    file = label.state / FILE
    with (label.state / f"{FILE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        entries: list[Entry] = json.loads(file.read_text()) if file.exists() else []
        yield entries
        write_whole(file, json.dumps(entries))


def remove(label: Label) -> tuple[list[str], list[str]]:
    """Removes a run's domains and restores the user's own: (done, not done)."""
    file = label.state / FILE
    try:
        entries: list[Entry] = json.loads(file.read_text())
    except FileNotFoundError:
        return [], []
    except (OSError, ValueError) as error:
        return [], [f"{file} (its notes on domains cannot be read: {error})"]
    done: list[str] = []
    left: list[str] = []
    for entry in entries:
        what = f"domain {entry['domain']} of {entry['uri']}"
        try:
            said = what if entry["before"] is None else f"limits of {what}, which were restored"
            done += [said] if _undo(entry) else []
        except (CapabilityError, TrialError) as error:
            left.append(f"{what} ({error})")
        except (KeyError, TypeError):
            left.append(f"{what} (its original settings were stored by another version of Partywall)")
    return done, left


def destroy(domain: Any) -> bool:
    """Destroys a created domain. Returns whether it still existed. TrialError if it could not be destroyed."""
    libvirt = library()
    try:
        domain.destroy()
    except libvirt.libvirtError as error:
        # It ended with its owner's connection or on its own.
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return False
        raise TrialError(str(error)) from error
    return True


def _undo(entry: Entry) -> bool:
    """Undoes one note. Returns whether there was something to undo."""
    connection = connect(entry["uri"])
    try:
        domain = _domain_named(connection, entry["domain"])
        if domain is None:
            return False
        if entry["before"] is None:
            return destroy(domain)
        return Tuner(connection, domain, entry["domain"]).restore(Before(**entry["before"]))
    finally:
        connection.close()


def _domain_named(connection: Any, name: str) -> Any:
    """The domain; None if there is none with this name."""
    libvirt = library()
    try:
        return connection.lookupByName(name)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise TrialError(str(error)) from error
