"""What the observations of a run mean: every figure with its interval. Pure functions, see docs/statistics.md."""
