"""Partywall measures, explains and enforces performance isolation between neighbours on a shared Linux host."""

__version__ = "0.1.0"
