"""Run directories: plain files that survive a kill, and functions to read them.

  scenario.yaml   as given            events.jsonl   one event on each line, append-only
  plan.json       the plan            slices/, samples/, output/   Parquet, one file for each turn
  host.json       facts               pending/       lines of the current turn, converted to Parquet at its end
  journal.jsonl   events for those who watch from outside, see partywall.kinds.journal

A kill at any time loses at most the current slots: a block counts once its `block_done` event is written.
"""

from partywall.run.record.blocks import Blocks
from partywall.run.record.directory import RunDirectory
from partywall.run.record.evidence import decided, evidence, observations_of
from partywall.run.record.observe import Window, observe

__all__ = ["Blocks", "RunDirectory", "Window", "decided", "evidence", "observations_of", "observe"]
