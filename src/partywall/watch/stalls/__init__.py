"""Follows which group of the host waits for a CPU, memory or a disk, and who used it then: always on, and small.

`rule`, `detect`, `budget` and `totals` are pure. `reading` reads the kernel's counters, and `resident` is the program
`partywall-watch`. No module here imports Pydantic or another large library, because the program stays below 30 MB.
"""
