"""The stream of events and its listeners."""

import errno

from partywall.events import Broken, Doing, Note, Sinks


def full(_event):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_sink_that_cannot_be_written_is_left_out_and_the_others_are_reported():
    heard = []
    sinks = Sinks("the policy is still enforced")
    sinks.add("metrics.prom", full)
    sinks.add("the table", heard.append)
    for event in (Doing("one"), Note("two")):
        sinks(event)
    said = "metrics.prom can no longer be written: No space left on device; the policy is still enforced"
    assert heard == [Broken(said), Doing("one"), Note("two")]


def test_nobody_is_left_to_tell():
    sinks = Sinks()
    sinks.add("a", full)
    sinks.add("b", full)
    sinks(Doing("one"))
    sinks(Doing("two"))
