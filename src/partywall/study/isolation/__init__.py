"""Studies of isolation: scenarios beside a paper's tables and figures."""

from partywall.study.isolation.kind import Isolation, overview
from partywall.study.isolation.model import Study

__all__ = ["Isolation", "Study", "overview"]
