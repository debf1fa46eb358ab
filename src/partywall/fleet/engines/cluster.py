"""What engines of clusters share: a cluster's own command, its listing, and the run that a host holds for it."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from partywall.fleet.engines.engine import Unreachable
from partywall.fleet.ledger.look import PID, ROOT

T = TypeVar("T")
TIMEOUT_S = 30.0
FAILED_S = 3.0
"""How long a cluster is not asked again after it gave no listing."""
HOLD_S = 120
"""How long a job keeps its host without a run, so that files can come home."""
# Whether a run of a ledger goes on: its keeper is there. A signal is sent to it. Arguments: root; run, or "" for any;
# signal or ""; what must be in the keeper's environment, or "".
KEEPER = (
    f"root=$1; {ROOT}; "
    'lease=$(cat "$root/lease.json" 2>/dev/null) || exit 1; '
    'case $lease in *"\\"run\\": \\"$2"*) ;; *) exit 1;; esac; signal=$3; mark=$4; '
    f'{PID}; case $pid in ""|*[!0-9]*) exit 1;; esac; '
    'ticks=${lease#*\\"start_ticks\\": }; ticks=${ticks%%,*}; '
    'stat=$(cat "/proc/$pid/stat" 2>/dev/null) || exit 1; set -- ${stat##*) }; [ "${20}" = "$ticks" ] || exit 1; '
    'case $mark in "") ;; *) '
    '{ tr "\\0" "\\n" < "/proc/$pid/environ" | grep -qxF "$mark"; } 2>/dev/null || exit 1;; esac; '
    'case $signal in "") ;; *) kill "-$signal" "$pid";; esac'
)


def keeper_of(run: str) -> str:
    """The second argument of `KEEPER` for one run alone."""
    return f'{run}"'


class Listed(Generic[T]):
    """What a cluster says of all its hosts, which threads share.

    ask: asks for it, or raises Unreachable. fresh_s: how long it is used.
    """

    def __init__(self, ask: Callable[[], T], fresh_s: float) -> None:
        self._ask, self._fresh_s, self._lock = ask, fresh_s, threading.Lock()
        self._known: T | Unreachable | None = None
        self._until = 0.0

    def now(self) -> T:
        """The listing, no older than it may be. Raises Unreachable."""
        with self._lock:
            if self._known is None or time.monotonic() > self._until:
                try:
                    self._known = self._ask()
                except Unreachable as error:
                    self._known = error
                self._until = time.monotonic() + (FAILED_S if isinstance(self._known, Unreachable) else self._fresh_s)
            if isinstance(self._known, Unreachable):
                raise self._known
            return self._known

    def forget(self) -> None:
        """To be called after a change."""
        with self._lock:
            self._known = None


@dataclass(frozen=True)
class Command:
    """The command by which a cluster is asked.

    package: what installs it. alive: how a user finds out why the cluster does not answer. lasting: of what it says if
    it would fail again.
    """

    package: str
    alive: str
    lasting: re.Pattern[str]
    environment: Mapping[str, str]

    def called(self, argv: Sequence[str], given: bytes = b"") -> bytes:
        """What it prints. Unreachable if it fails."""
        try:
            done = subprocess.run(
                argv, input=given, capture_output=True, timeout=TIMEOUT_S, check=False, env=self.environment
            )
        except subprocess.TimeoutExpired:
            raise Unreachable(f"{argv[0]}: no answer within {TIMEOUT_S:.0f} s; look at: {self.alive}") from None
        except OSError as error:
            said = f"{argv[0]}: {error.strerror}; install it here ({self.package})"
            raise Unreachable(said, is_lasting=True) from None
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise Unreachable(said or f"{argv[0]} failed", is_lasting=bool(self.lasting.search(said)))
        return done.stdout
