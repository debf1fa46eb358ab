"""Measures many hosts: which host is next, what it runs, and which files come home."""
