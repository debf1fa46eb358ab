"""Scenario files: reads them, reports all mistakes at once, finds them by name, and describes the format to editors."""

from partywall.run.check.reading import changed, find, load, loads, located, names
from partywall.run.check.rules import Expected, expected
from partywall.run.document.schema import json_schema

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
