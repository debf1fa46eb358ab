"""Which guest is moved how: the job, from which the command and the Python function are made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import model_validator

from partywall.agent.catalogue import shipped
from partywall.core.document.textfile import Document
from partywall.core.job import Job, Option
from partywall.errors import Problem, UsageError
from partywall.migrate import check
from partywall.migrate.document import MigrationPlan

PLAN = Document(MigrationPlan, lambda file: check.load(file, shipped()), check.find, check.names, edited=True)


class MigrationJob(Job):
    """Move a guest between hosts while it works, and measure what that does to its users.

    \b
      partywall migrate migration --advise     say what each method would cost
      partywall migrate migration --dry-run    predict the moves, change nothing
      partywall migrate migration              move, and judge the predictions

    Without `hosts` in the plan, both hosts are network namespaces on this machine, joined by a link of the rate that
    the plan states. With `hosts`, a guest of your own moves between two hosts with libvirt or QEMU. It is watched for
    some seconds first, and the prediction is shown before it moves.

    --dry-run rests on an earlier record; a guest of your own is watched for some seconds.

    Clients send requests on a fixed schedule during each move. The report shows three blackouts of each move: as the
    hypervisor states it, by the guest's clock, and as clients saw it. Methods are compared within rounds, in random
    order.

    Needs root and QEMU, or hosts of your own. Exit code: 0 all moves done and the goal reached, 1 a guest was lost or
    no method reaches the goal, 2 bad plan or option, 3 inconclusive, 4 a host lacks something.
    """  # noqa: D301 - Click keeps the lines after a backspace

    makes_files: ClassVar[bool] = True

    plan: Annotated[
        MigrationPlan,
        PLAN,
        Option(
            "A migration plan (YAML, see docs/migrate.md), or the name of a shipped one: migration.",
            metavar="PLAN",
            example="migration",
        ),
    ]
    known: Annotated[
        Path | None,
        Option(
            "Record that predictions of --dry-run rest on, and for a guest of your own all predictions. Default: "
            "those in runs/ with the same guest, link and workloads, the newest first.",
            page="",
        ),
    ] = None
    only_advise: Annotated[
        bool,
        Option(
            "Watch the guest and move it idle a few times, then say what each method would cost. A guest of your "
            "own is only watched.",
            flag="--advise",
        ),
    ] = False

    @model_validator(mode="after")
    def _can_predict(self) -> Self:
        if self.only_advise and self.plan.hosts is None and not self.plan.calibration:
            said = "calibration is 0, so nothing can be predicted"
            raise UsageError(Problem(said, "set it to 3 in the plan, for example", key="--advise"))
        return self

    @property
    def subject(self) -> str:
        return self.plan.name
