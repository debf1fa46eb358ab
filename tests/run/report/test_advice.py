import pytest

from partywall.agent.catalogue import Warn
from partywall.run.report.advice import ADVICE


@pytest.mark.parametrize("warn", Warn)
def test_every_warning_has_advice_that_says_what_it_means_and_what_to_do(warn):
    advice = ADVICE[warn]
    assert advice.title
    assert advice.meaning.endswith(".")
    assert advice.remedy.endswith(".")


def test_there_is_no_advice_for_warnings_that_do_not_exist():
    assert set(ADVICE) == set(Warn)
