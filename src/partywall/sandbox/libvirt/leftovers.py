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
from partywall.files import write_whole
from partywall.sandbox.label import Label
from partywall.sandbox.libvirt.domain import PREFIX
from partywall.sandbox.libvirt.library import connect, library
from partywall.sandbox.libvirt.tuning import Before, Tuner

FILE = "domains.json"
Entry = dict[str, Any]


def domain_name(label: Label, sandbox: str) -> str:
    """What a domain of ours is called."""
    return f"{PREFIX}{label.run}-{sandbox}"


def note(label: Label, uri: str, domain: str) -> None:
    """Remembers a domain that is about to be made."""
    with _entries(label) as entries:
        if _known(entries, uri, domain) is None:
            entries.append({"uri": uri, "domain": domain, "before": None})


def note_before(label: Label, uri: str, domain: str, now: Before) -> Before:
    """Remembers how a domain of the user's was before it is changed, and tells it.

    That is not how it is now if an earlier visit could not put it back: then what is remembered of it stays.
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
    """It is gone, or as it was."""
    with _entries(label) as entries:
        entries[:] = [entry for entry in entries if (entry["uri"], entry["domain"]) != (uri, domain)]


@contextlib.contextmanager
def _entries(label: Label) -> Iterator[list[Entry]]:
    """Read, and put in its place whole: a kill in between leaves the notes of before.

    Sandboxes may come up side by side, so there is a lock, on a file that is never replaced.
    """
    label.state.mkdir(parents=True, exist_ok=True)
    file = label.state / FILE
    with (label.state / f"{FILE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        entries: list[Entry] = json.loads(file.read_text()) if file.exists() else []
        yield entries
        write_whole(file, json.dumps(entries))


def remove(label: Label) -> tuple[list[str], list[str]]:
    """Takes a run's domains away and puts the user's own back as they were: (what was done, what could not be)."""
    file = label.state / FILE
    try:
        entries: list[Entry] = json.loads(file.read_text())
    except FileNotFoundError:
        return [], []
    except (OSError, ValueError) as error:
        return [], [f"{file} (what it says of domains cannot be read: {error})"]
    done: list[str] = []
    left: list[str] = []
    for entry in entries:
        what = f"domain {entry['domain']} of {entry['uri']}"
        try:
            said = what if entry["before"] is None else f"limits of {what}, which are as before"
            done += [said] if _undo(entry) else []
        except (CapabilityError, TrialError) as error:
            left.append(f"{what} ({error})")
        except (KeyError, TypeError):
            left.append(f"{what} (how it was before was noted by another version of Partywall)")
    return done, left


def destroy(domain: Any) -> bool:
    """Ends a domain of ours: whether it was still there. TrialError if it would not go."""
    libvirt = library()
    try:
        domain.destroy()
    except libvirt.libvirtError as error:
        # Gone with its owner's connection or by itself.
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return False
        raise TrialError(str(error)) from error
    return True


def _undo(entry: Entry) -> bool:
    """Whether there was something to undo."""
    connection = connect(entry["uri"])
    try:
        domain = _found(connection, entry["domain"])
        if domain is None:
            return False
        if entry["before"] is None:
            return destroy(domain)
        return Tuner(connection, domain, entry["domain"]).restore(Before(**entry["before"]))
    finally:
        connection.close()


def _found(connection: Any, name: str) -> Any:
    """The domain; None if there is none of that name."""
    libvirt = library()
    try:
        return connection.lookupByName(name)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise TrialError(str(error)) from error
