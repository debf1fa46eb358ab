"""Studies of live migration: what users and computations see of a guest that moves."""

from partywall.study.migration.kind import MigrationStudy

__all__ = ["MigrationStudy"]
