"""Studies of load generators: virtual users from physical and virtual machines."""

from partywall.study.generation.kind import Generation

__all__ = ["Generation"]
