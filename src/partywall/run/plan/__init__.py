"""Checks before a run: what a scenario needs, what a host lacks, and the room for memory and files."""
