"""Scenario files: read, checked with all mistakes at once, found by name, and described for editors."""

from partywall.scenario.check import Expected, expected
from partywall.scenario.load import changed, find, load, loads, located, names, shipped_as, shipped_file, text
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
    "shipped_as",
    "shipped_file",
    "text",
]
