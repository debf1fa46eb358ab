"""What several checks find is told at once, and by the kind of what is to be mended."""

import re
from pathlib import Path

import pytest

from partywall import errors
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


@pytest.mark.parametrize(("other", "is_early"), [(True, True), (False, False)])
def test_what_may_be_right_later_is_so_only_if_nothing_else_is_wrong(other, is_early):
    with pytest.raises(UsageError) as caught:
        reported(UsageError("no tap yet", is_early=True), CapabilityError("libvirtd", is_early=other)).tell()
    assert caught.value.is_early is is_early


def test_other_errors_pass():
    with pytest.raises(KeyError):
        reported(KeyError("x"))


def test_no_output_of_a_program_is_read_as_if_it_were_always_utf_8():
    """One byte of another encoding in a message of a user's command was a bug of Partywall."""
    sources = sorted(Path(errors.__file__).parent.rglob("*.py"))
    strict = [file.name for file in sources if re.search(r"\btext=True(?!,\s*errors=)", file.read_text())]
    assert strict == []
