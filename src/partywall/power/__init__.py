"""Watts: meters, their readings in threads of their own, power models, and who uses the power."""
