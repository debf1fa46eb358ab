"""Read power meters, fit a power model of this host, and show who uses the watts."""
