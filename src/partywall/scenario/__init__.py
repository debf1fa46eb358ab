"""Scenario files: reads them, reports all mistakes at once, finds them by name, and describes the format to editors."""

from partywall.scenario.check import Expected, expected
from partywall.scenario.load import changed, find, load, loads, located, names
from partywall.scenario.schema import json_schema

__all__ = [
    "Expected",
    "changed",
    "expected",
    "find",
    "json_schema",
    "load",
    "loads",
    "located",
    "names",
]
