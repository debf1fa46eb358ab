"""Values of statistics, for all capabilities. Pure."""
