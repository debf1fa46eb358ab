"""Scenario files: read, checked with all mistakes at once, found by name, and described for editors."""

from partywall.scenario.load import changed, find, find_study, load, loads, names, text
from partywall.scenario.schema import json_schema

__all__ = ["changed", "find", "find_study", "json_schema", "load", "loads", "names", "text"]
