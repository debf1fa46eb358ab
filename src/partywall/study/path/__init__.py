"""Studies of a packet's path: a target's bandwidth beside a neighbour, and where its packets wait."""

from partywall.study.path.kind import PathStudy

__all__ = ["PathStudy"]
