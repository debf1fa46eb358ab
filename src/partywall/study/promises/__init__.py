"""Studies of bandwidth guarantees: tenants' traffic natively, with tc and with the guard."""

from partywall.study.promises.kind import Promises

__all__ = ["Promises"]
