"""Studies of isolation: scenarios beside a paper's tables and figures."""

from partywall.study.isolation.kind import Isolation, overview

__all__ = ["Isolation", "overview"]
