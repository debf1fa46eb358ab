"""Reads the disks and their users, period by period. The part of a watch that touches the host; it only reads."""
