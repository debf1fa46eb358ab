"""Carries out a packet trace: hooks on interfaces of this host and, through further agents, elsewhere.

`hops` parses the command line; `tracing` carries out the trace. Results go to a sink. Storing and showing them is done
elsewhere.
"""

from partywall.trace.follow import trace_while
from partywall.trace.hops import ask
from partywall.trace.tracing import Present, Tracing

__all__ = ["Present", "Tracing", "ask", "trace_while"]
