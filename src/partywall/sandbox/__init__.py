"""Where workloads run. Each backend starts an agent in a place with the requested settings, and changes them live.

Everything created here is labelled with its run, so that `reap` can remove what a killed run left behind.
"""

from partywall.sandbox.base import Sandbox, Settings, Spent, make
from partywall.sandbox.reaper import Reaped, reap

__all__ = ["Reaped", "Sandbox", "Settings", "Spent", "make", "reap"]
