"""Simulated labs whose truth is known, six detectors on the same data, and a scorer. Nothing here touches a host."""
