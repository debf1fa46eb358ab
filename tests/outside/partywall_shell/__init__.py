"""An engine of another package: hosts behind a shell, as behind any program that carries commands to hosts."""

import shlex

from partywall.fleet.engines.calling import TIMEOUT_S, Calling


class Shell(Calling):
    """Carries each command by `sh -c`."""

    def argv(self, place, words, *, begins=False, seconds=TIMEOUT_S):
        return ["sh", "-c", shlex.join(words)]
