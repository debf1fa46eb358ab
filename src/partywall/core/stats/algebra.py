"""Multiplication of matrices in one thread.

Statistics multiply many small matrices. With several threads, NumPy's library needs several times the CPU time for
these, because the threads wait for each other in a loop. They would also disturb a measurement that goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache

from threadpoolctl import ThreadpoolController


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """While this is entered, or in a function that it decorates, matrices are multiplied in one thread.

    The number belongs to the process. If several threads of a process enter this, it may be one after the last has
    left, too. This changes no result.
    """
    with _libraries().limit(limits=1, user_api="blas"):
        yield


@cache
def _libraries() -> ThreadpoolController:
    """The libraries that multiply. The search takes some milliseconds; NumPy's is loaded with NumPy."""
    return ThreadpoolController()
