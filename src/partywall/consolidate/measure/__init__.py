"""Consolidation carried out: hypervisors, power controls, what is seen of hosts. Only this room touches hosts."""
