"""What several checks find is told at once, and by the kind of what is to be mended."""

import pytest

from partywall.errors import CapabilityError, Failures, Problem, UsageError

WRONG = Problem("wrong", key="a.b")


def reported(*raised):
    failures = Failures()
    for error in raised:
        with failures.kept():
            raise error
    return failures


def test_nothing_is_raised_where_nothing_was_found():
    reported().tell()


def test_where_the_host_alone_is_to_be_repaired_it_is_said_so():
    with pytest.raises(CapabilityError, match=r"^no QEMU\nno disk$"):
        reported(CapabilityError("no QEMU"), CapabilityError("no disk")).tell()


def test_what_is_wrong_with_the_input_is_reported_together_with_what_the_host_lacks_each_once():
    with pytest.raises(UsageError) as caught:
        reported(CapabilityError("no QEMU", WRONG), UsageError(WRONG)).tell()
    assert caught.value.problems == (Problem("no QEMU"), WRONG)


def test_other_errors_pass():
    with pytest.raises(KeyError):
        reported(KeyError("x"))
