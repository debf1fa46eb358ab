"""Memory is touched and timed before load, guard and path studies, as before a run."""

from __future__ import annotations

import pytest

from partywall import pipeline
from partywall.errors import CapabilityError
from partywall.events import Doing


@pytest.mark.host
@pytest.mark.long
def test_memory_that_is_there_is_checked_and_more_than_the_host_has_is_refused():
    said = []
    pipeline.check_free_memory(16 << 20, "senders", said.append)
    assert said[0] == Doing("checking that 16 MiB of memory are available")
    with pytest.raises(CapabilityError, match="memory for senders"):
        pipeline.check_free_memory(1 << 50, "senders", said.append)
