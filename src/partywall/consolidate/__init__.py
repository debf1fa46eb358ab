"""Plan which guests share a host and which hosts are off, and simulate policies.

Plans come from `placement` and are simulated there; `measure` carries them out and watches.
"""
