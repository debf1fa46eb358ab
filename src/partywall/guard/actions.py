"""The commands of a guard that enforce nothing themselves: they check, change, list and remove policies."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar

from partywall.core import control
from partywall.core.job import Action, Option
from partywall.core.report.value import Lines, Report
from partywall.errors import Problem, UsageError
from partywall.guard.change import changes, refuse
from partywall.guard.check import load, loads
from partywall.guard.job import PolicyFile
from partywall.guard.record import GuardRecord
from partywall.host.label import state_root


class Check(Action):
    """Check a policy. All mistakes are reported at once, with line, key and remedy.

    The host need not have its vifs. If it has, the side of each is compared with the interface.
    """

    verb: ClassVar[str] = "check"

    policy: Annotated[PolicyFile, Option("A policy file.", metavar="POLICY")]

    def act(self, host: Callable[[], Any]) -> Report:
        from partywall.guard import promised
        from partywall.guard.measure.ends import check_sides_here

        del host
        policy = loads(self.policy.text, self.policy.path)
        check_sides_here(policy)
        sums = Lines("sums", "", list(promised.sums(policy)))
        return Report("", sections=(promised.table(policy), sums), values={"sums": sums.lines})


class Adjust(Action):
    """Replace the policy of a running guard, whole or not at all. Hooks stay attached.

    partywall guard adjust series edge.yaml

    Promises, ceilings, priorities, goals, tenants, capacities of links and times may change. Links, vifs, flow classes
    and their packets may not: start the guard again for that. The guard says what became of it, and its report shows
    from when which promise held.
    """

    verb: ClassVar[str] = "adjust"

    running: Annotated[Path, Option("The folder of a running guard (--out).", metavar="GUARD")]
    policy: Annotated[PolicyFile, Option("A policy file.", metavar="POLICY")]

    def act(self, host: Callable[[], Any]) -> Report:
        del host
        file, text = self.policy.path, self.policy.text
        new, record = loads(text, file), GuardRecord.open(self.running)
        current = loads(record.policy(), str(self.running))
        refuse(current, new, file, text)
        control.ask(record, "its policy", policy=text)
        changed = changes(current, new)
        lines = changed or ("no key differs from the policy that is enforced",)
        return Report("", sections=(Lines("changes", "", lines),), values={"changes": changed})


class Status(Action):
    """Show the policies that are enforced on this host, by which process, and those whose process has died."""

    verb: ClassVar[str] = "status"

    def act(self, host: Callable[[], Any]) -> Report:
        from partywall.guard.measure import left

        del host
        files = sorted(state_root().glob("guard-*.json")) if state_root().is_dir() else []
        kept = {name: left.owner(name) for name in (file.stem.removeprefix("guard-") for file in files)}
        died = "its process has died; clean up with: partywall guard remove"
        lines = [f"{name}: {f'enforced by process {pid}' if pid else f'{died} {name}'}" for name, pid in kept.items()]
        said = Lines("policies", "", lines or ["no policy is enforced on this host"])
        return Report("", sections=(said,), values={"policies": [{"name": name, "pid": kept[name]} for name in kept]})


class Remove(Action):
    """Remove everything that a guard left in the kernel: hooks, buckets and queues."""

    verb: ClassVar[str] = "remove"

    policy: Annotated[str, Option("A policy file, or the name that 'guard status' shows.", metavar="POLICY")]

    def act(self, host: Callable[[], Any]) -> Report:
        from partywall.core.here import check_hooks
        from partywall.guard.measure import left, run

        del host
        name, hooks = self._left()
        check_hooks("guard remove")
        if pid := left.owner(name):
            raise UsageError(Problem(f"policy {name!r} is enforced by process {pid}", "end that process first"))
        removed = run.remove(name, hooks)
        return Report(
            "", sections=(Lines("removed", "", removed or ["nothing was left"]),), values={"removed": removed}
        )

    def _left(self) -> tuple[str, list[Any]]:
        """Name and hooks of a policy: from the state file of its process, or else from the policy itself."""
        policy = load(self.policy) if Path(self.policy).is_file() else None
        name = policy.name if policy else self.policy
        with contextlib.suppress(OSError, ValueError, KeyError):
            return name, json.loads((state_root() / f"guard-{name}.json").read_text())["hooks"]
        if policy is None:
            raise UsageError(Problem(f"no policy {name!r} is enforced here", "'partywall guard status' lists them"))
        from partywall.guard.measure.flatten import flatten
        from partywall.guard.measure.resolve import resolve

        return name, flatten(policy, resolve(policy)).start["hooks"]
