"""Carries out a plan: the only stage that measures.

It creates sandboxes, sends schedules to agents, and stores their messages.

Figures are interpreted in `findings`. Decisions during a run (a trial is precise enough, its slots are too short) are
passed in as functions, so that measuring does not depend on statistics.
"""
