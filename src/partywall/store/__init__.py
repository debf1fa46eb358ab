"""Run directories: plain files that survive a kill, and what is read back from them.

    scenario.yaml   as given            events.jsonl   one line an event, append-only
    plan.json       what was to be done slices/, samples/, output/   Parquet, one file a visit
    host.json       facts               pending/       lines of the visit in flight, turned to Parquet at its end

A kill at any moment loses at most the slots in flight: a block counts once its `block_done` event is written.
"""

from partywall.store.directory import RunDirectory, blocks_done
from partywall.store.evidence import evidence
from partywall.store.observe import Window, observe

__all__ = ["RunDirectory", "Window", "blocks_done", "evidence", "observe"]
