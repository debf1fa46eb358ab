"""Hooks in the state file of a guard whose process has ended, and which of them may still exist.

A namespace may outlive its file (`ip netns del` while a process is in it), and a file its namespace, so both are
searched for. Reads the host, and forgets hooks that no longer exist. `run` removes hooks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from partywall.guard.measure.resolve import NETNS, identity
from partywall.host.label import start_ticks, state_root

PROC = Path("/proc")


def state(name: str) -> Path:
    """The state file of policy `name`, where its process records its hooks."""
    return state_root() / f"guard-{name}.json"


def owner(name: str) -> int | None:
    """The process that enforces policy `name` now; None if there is none."""
    written = _read(state(name))
    try:
        alive = written["start_ticks"] is not None and start_ticks(written["pid"]) == written["start_ticks"]
        return int(written["pid"]) if alive else None
    except (KeyError, ValueError, TypeError):
        return None


def hooks(file: Path) -> list[Any]:
    """The recorded hooks; empty if the file is missing or unreadable."""
    return list(_read(file).get("hooks", []))


def noted(name: str) -> dict[str, list[int]]:
    """The identity of each namespace file, as recorded in the state file."""
    return dict(_read(state(name)).get("namespaces", {}))


def namespaces(placed: Sequence[Mapping[str, Any]], before: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """The identity of each namespace file, to find it again without the file.

    For a missing file, the recorded identity.
    """
    files = {hook["namespace"] for hook in placed if hook["namespace"]}
    now = {file: list(which) for file in files if isinstance(which := identity(file), tuple)}
    return {file: which for file, which in before.items() if file in files} | now


def is_there(hook: Mapping[str, Any]) -> bool:
    """True if the file of the hook's namespace still exists."""
    return isinstance(identity(hook["namespace"]), tuple)


def located(name: str, placed: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The hooks at every file that stands or stood for their namespace, without those whose namespace is gone."""
    stands = _Stands(_read(state(name)).get("namespaces", {}))
    return [{**hook, "namespace": file} for hook in placed for file in stands.files(hook["namespace"])]


def reap() -> list[str]:
    """Forgets policies without a process whose namespaces are all gone. Returns their names."""
    root = state_root()
    over = [file for file in sorted(root.glob("guard-*.json")) if _is_over(file)] if root.is_dir() else []
    for file in over:
        file.unlink(missing_ok=True)
    return [_name(file) for file in over]


def _is_over(file: Path) -> bool:
    """True if nothing can be left. An unreadable file proves nothing and is kept for people to look at."""
    placed = hooks(file)
    return bool(placed) and owner(_name(file)) is None and not located(_name(file), placed)


def _name(file: Path) -> str:
    return file.stem.removeprefix("guard-")


def _read(file: Path) -> dict[str, Any]:
    try:
        written = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return written if isinstance(written, dict) else {}


class _Stands:
    """The namespaces that files stand for. written: the one of each file when it was hooked."""

    def __init__(self, written: Mapping[str, Sequence[int]]) -> None:
        self.written = {file: tuple(which) for file, which in written.items()}
        self.others: dict[object, str] | None = None

    def files(self, file: str | None) -> list[str | None]:
        if file is None:
            return [None]
        now = identity(file)
        there: list[str | None] = [file] if isinstance(now, tuple) else []
        then = self.written.get(file)
        if then is None or then == now:
            return there
        elsewhere = self._elsewhere(then)
        return [*there, elsewhere] if elsewhere else there

    def _elsewhere(self, which: tuple[int, ...]) -> str | None:
        """Another name of a namespace, or a process in it."""
        if self.others is None:
            files = [*PROC.glob("[0-9]*/ns/net"), *NETNS.glob("*")]
            self.others = {identity(str(file)): str(file) for file in files}
        return self.others.get(which)
