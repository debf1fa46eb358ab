"""Carries out a trace: hooks on interfaces of this host and, through further agents, elsewhere."""
