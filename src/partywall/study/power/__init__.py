"""Studies of power: watts of a node by its state, and of the move of a guest."""

from partywall.study.power.kind import PowerStudy

__all__ = ["PowerStudy"]
