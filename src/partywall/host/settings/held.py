"""Settings of this host that a scenario changes for each turn: the table, what prevents them, and the change."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from partywall.errors import TrialError
from partywall.host import Host
from partywall.host.label import WORK_ROOT
from partywall.host.settings import ledger, scheduler, smt
from partywall.values import Frozen, Switch


@dataclass(frozen=True)
class Setting:
    """One setting. what: in words. levels: every value. state: where the original is stored, see `ledger`.

    file: the kernel's file, for the folder with the run's files; None if it cannot be changed. before: the contents of
    files that restore the present value. why_not: why a host cannot have some levels, with a remedy; empty if it can.
    """

    what: str
    levels: tuple[str, ...]
    state: str
    file: Callable[[Path, Host], Path | None]
    before: Callable[[Path, Host], Mapping[Path, str]]
    why_not: Callable[[Sequence[str], Path, Host], str]


SETTINGS: Mapping[str, Setting] = {
    "io_scheduler": Setting(
        "the I/O scheduler",
        scheduler.NAMES,
        ledger.IO_SCHEDULER,
        scheduler.setting,
        scheduler.before,
        scheduler.why_not,
    ),
    "smt": Setting("SMT", smt.SWITCHES, ledger.SMT, smt.setting, smt.before, smt.why_not),
}
"""By their names in `HostSettings`."""


def key(name: str) -> str:
    """The key of a setting in a scenario."""
    return f"host.{name}"


def wanted(chosen: HostSettings) -> dict[str, str]:
    """The settings that a scenario or trial has, by name."""
    levels = {name: getattr(chosen, name) for name in SETTINGS}
    return {name: level for name, level in levels.items() if level is not None}


def refused(host: Host, folder: Path = WORK_ROOT) -> dict[str, dict[str, str]]:
    """Why levels are not available, by setting and level; without available ones."""
    return {
        name: {level: why for level in setting.levels if (why := setting.why_not([level], folder, host))}
        for name, setting in SETTINGS.items()
    }


@contextlib.contextmanager
def held(chosen: HostSettings, folder: Path, host: Host) -> Iterator[None]:
    """Gives the host these settings while the block runs; nothing is changed for None.

    folder: that with the run's files. TrialError if the host no longer can, or the kernel refuses.
    """
    with contextlib.ExitStack() as stack:
        for name, level in wanted(chosen).items():
            setting = SETTINGS[name]
            file = setting.file(folder, host)
            if file is not None:
                before = functools.partial(setting.before, file, host)
                stack.enter_context(ledger.changed(setting.state, setting.what, {file: level}, before))
            elif why := setting.why_not([level], folder, host):
                raise TrialError(f"{key(name)}: {why}")
        yield


class HostSettings(Frozen):
    """Settings of this host during a run; its own are restored afterwards."""

    io_scheduler: Literal["none", "mq-deadline", "bfq", "kyber"] | None = Field(
        None, description="I/O scheduler of the disk with the run's files (--work-dir); default: as it is"
    )
    smt: Switch | None = Field(
        None,
        description="off: one CPU of each core is online (no HyperThreading), for the whole host; default: as it is",
    )
