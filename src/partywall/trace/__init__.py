"""Carries out a packet trace: hooks on interfaces of this host and, by further agents, of places elsewhere.

`hops` reads what a person writes; `tracing` carries it out. What is found goes to a sink; who stores or shows it is not
known.
"""

from partywall.trace.follow import trace_while
from partywall.trace.hops import ask
from partywall.trace.tracing import Tracing

__all__ = ["Tracing", "ask", "trace_while"]
