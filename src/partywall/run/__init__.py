"""Carries out a plan: the only stage that measures.

It creates sandboxes, sends schedules to agents, and stores their messages.

Figures are interpreted elsewhere. Decisions during a run (a trial is precise enough, its slots are too short) are
passed in as functions, so that this stage does not depend on statistics.
"""

from partywall.run.execute import LOOKS_FROM, PILOTS, Decisions, execute

__all__ = ["LOOKS_FROM", "PILOTS", "Decisions", "execute"]
