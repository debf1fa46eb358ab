"""Follows packets from hop to hop: where they are lost, and where they wait. `hops` parses the command line."""
