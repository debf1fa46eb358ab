"""Measure the same thing on many hosts, and say which of them isolate worse than the others."""
