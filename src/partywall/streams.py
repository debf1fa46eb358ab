"""Standard streams that the caller has closed, that are full, or that nobody reads any more."""

from __future__ import annotations

import errno
import os
import sys

from partywall.errors import Exit

CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)


def open_streams() -> None:
    """Opens standard streams that the caller has closed, so that no other file gets their numbers.

    Reading finds nothing and messages are lost. Output fails, because somebody may rely on it.
    """
    for number, name, mode, flags in (
        (0, "stdin", "r", os.O_RDONLY),
        (1, "stdout", "w", os.O_RDONLY),
        (2, "stderr", "w", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


def flushed(program: str, outcome: int) -> int:
    """Flushes standard output, and returns the exit code. Short output cannot fail before this."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        stop_output()
    except OSError as error:
        return unwritten(program, error)
    return outcome


def unwritten(program: str, error: OSError) -> int:
    """Says that standard output cannot be written to, and returns the exit code. It is no error if its reader ended."""
    stop_output()
    if isinstance(error, BrokenPipeError):
        return Exit.HOLDS
    closed = error.errno == errno.EBADF
    why = "standard output is closed; send it" if closed else f"{error.strerror}; free some space, or send the output"
    sys.stderr.write(f"{program}: cannot write: {why} elsewhere\n")
    return Exit.FAILED


def stop_output() -> None:
    """Drops what is still written to standard output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
