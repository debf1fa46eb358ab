"""The stream of events and its listeners."""

import errno

from partywall.events import Doing, Note, Sinks


def full(_event):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_sink_that_cannot_be_written_is_left_out_and_the_others_go_on():
    warned, heard = [], []
    sinks = Sinks(warned.append, "the policy is kept all the same")
    sinks.add("metrics.prom", full)
    sinks.add("the table", heard.append)
    for event in (Doing("one"), Note("two")):
        sinks(event)
    assert heard == [Doing("one"), Note("two")]
    said = "metrics.prom cannot be written any more: No space left on device; the policy is kept all the same"
    assert warned == [said]
    assert sinks.broken == ["metrics.prom"]
