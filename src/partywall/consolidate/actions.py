"""The command that measures nothing: it says why a plan is as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar

from partywall.consolidate.record import ConsolidationDirectory
from partywall.core.document.explain import did_you_mean
from partywall.core.job import Action, Option
from partywall.core.report.value import Lines, Report
from partywall.errors import Problem, UsageError


class Explain(Action):
    """Say why a plan is as it is.

    Lists the reason of each step, the next best place of each guest, and other plans.
    """

    verb: ClassVar[str] = "explain"

    record: Annotated[Path, Option("A directory that 'consolidate plan' has made.", metavar="RECORD")]
    guest: Annotated[str | None, Option("Only this guest.")] = None

    def act(self, host: Callable[[], Any]) -> Report:
        from partywall.consolidate.report import explained

        del host
        evidence = ConsolidationDirectory.open(self.record).evidence()
        if evidence.plan is None:
            raise UsageError(f"{self.record} holds no plan; make one: partywall consolidate plan CLUSTER")
        known = evidence.cluster.guest_names()
        if self.guest is not None and self.guest not in known:
            remedy = did_you_mean(self.guest, known)
            raise UsageError(Problem(f"there is no guest {self.guest!r}", remedy, key="--guest"))
        lines = explained(evidence.plan, evidence.cluster, self.guest)
        return Report("", sections=(Lines("why", "", lines),), values={"lines": lines})
