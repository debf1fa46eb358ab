"""Measures many hosts: which one when, what each is asked for, and what comes home from it."""
