"""Scenario files: read, checked with all mistakes at once, found by name, and described for editors."""

from partywall.scenario.load import find, load, loads, names
from partywall.scenario.schema import json_schema

__all__ = ["find", "json_schema", "load", "loads", "names"]
