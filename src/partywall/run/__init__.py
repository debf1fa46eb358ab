"""Carries out a plan: the only stage that measures.

It makes sandboxes, sends agents their schedules, and appends what they say.

Deliberately not here: what the numbers mean. The decisions a run takes while it goes on (a trial is precise enough, its
slots are too short) come in as a function, so that this stage knows no statistics.
"""

from partywall.run.execute import PILOTS, Decisions, execute

__all__ = ["PILOTS", "Decisions", "execute"]
