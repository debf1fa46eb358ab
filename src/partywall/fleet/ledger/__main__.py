"""Carries out one request to the ledger of this host: `python -m partywall.fleet.ledger [ROOT]`.

The request is JSON on standard input, because it may be long. The answer is one line of JSON: a state, or an error.
"""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path

from partywall import __version__
from partywall.errors import PartywallError
from partywall.fleet.ledger.granting import Ledger, answered
from partywall.fleet.ledger.lease import default_root

FULL = (errno.ENOSPC, errno.EDQUOT)


def main(root: str = "") -> None:
    try:
        request = json.loads(sys.stdin.buffer.read())
        answer = answered(Ledger(Path(root) if root else default_root()), request)
    except PartywallError as error:
        answer = {"error": str(error)}
    except OSError as error:
        remedy = "free some space there, or set partywall_ledger" if error.errno in FULL else "check its permissions"
        answer = {"error": f"{error.filename or root or default_root()}: {error.strerror}; {remedy}"}
    print(json.dumps({"partywall": __version__, **answer}))  # noqa: T201 - the answer


if __name__ == "__main__":
    main(*sys.argv[1:])
