"""The consolidation manager: cluster files, power control, hypervisors, and plans that are carried out.

Decisions are made in `partywall.consolidate.placement`, which touches nothing.
"""
