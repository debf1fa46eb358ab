"""Studies of policies: what each of several policies gives the streams of some tenants."""

from partywall.study.policies.kind import PolicyStudy

__all__ = ["PolicyStudy"]
