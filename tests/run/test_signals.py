"""SIGTERM and SIGHUP end a job as Ctrl-C does, unless the signal is ignored."""

import os
import signal

import pytest

from partywall.core import execution


@pytest.fixture(params=[signal.SIGTERM, signal.SIGHUP])
def number(request):
    before = signal.getsignal(request.param)
    signal.signal(request.param, signal.SIG_DFL)
    yield request.param
    signal.signal(request.param, before)


def raised(number):
    with execution.terminated_as_interrupt(), execution.terminated_as_interrupt():
        os.kill(os.getpid(), number)


def test_a_signal_is_an_interrupt_and_its_handler_is_back_afterwards(number):
    with pytest.raises(KeyboardInterrupt):
        raised(number)
    assert signal.getsignal(number) == signal.SIG_DFL


def test_an_ignored_signal_stays_ignored(number):
    signal.signal(number, signal.SIG_IGN)
    raised(number)


def test_the_handler_of_a_program_is_called_too(number):
    calls = []
    signal.signal(number, lambda *call: calls.append(call[0]))
    with pytest.raises(KeyboardInterrupt):
        raised(number)
    assert calls == [number]
