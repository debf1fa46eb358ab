"""What is known of a guest before it moves, from a file with its memory and an agent that counts its pages."""

import numpy as np

from partywall.migrate.measure.survey import PARTS, survey

PAGE, MIB, MS = 4096, 1 << 20, 1_000_000


class Agent:
    """Counts pages as a host does that is late for every second sample. asked: what it was called with."""

    def __init__(self, looked_at):
        self.looked_at, self.asked = looked_at, {}

    def call(self, method, *, timeout_s, **asked):
        assert method == "memory.changes"
        assert timeout_s > asked["samples"] * asked["interval_ns"] / 1e9
        self.asked = asked
        width = len(asked["windows"])
        rows = [[None] * width, [None, 4, *[None] * (width - 2)], [2, 5, *[None] * (width - 2)]]
        samples = [{"at_ns": 0, "scan_ns": 0, "changed": row} for row in rows]
        pages = 160 * MIB // PAGE
        return {"page_bytes": PAGE, "pages": pages, "looked_at": self.looked_at, "samples": samples}


def test_a_guest_is_watched_in_windows_from_25_ms_to_over_2_s(tmp_path):
    file = tmp_path / "memory"
    with file.open("wb") as memory:
        memory.truncate(160 * MIB)
        memory.write(np.ones(3 * PAGE, np.uint8).tobytes())
    agent = Agent(looked_at=160 * MIB // PAGE // 3)
    seen = survey("writer", file, agent)
    assert seen.windows_ns[:3] == (25 * MS, 50 * MS, 100 * MS)
    assert seen.windows_ns[-1] > 2000 * MS
    assert agent.asked["samples"] > max(agent.asked["windows"])
    # A scan is of 64 MiB at most, so that the host keeps up with 25 ms.
    assert 160 // agent.asked["stride"] <= 64
    assert (seen.content, len(seen.layout)) == (3 * PAGE, PARTS)
    assert seen.changes_from == f"one page in {agent.asked['stride']} was watched"
    # What a late sample cannot tell is not known. What is known stands for the pages that are not looked at, too.
    scale = 160 * MIB / agent.looked_at
    assert [row[:3] for row in seen.changed] == [(None, 4 * scale, None), (2 * scale, 5 * scale, None)]
