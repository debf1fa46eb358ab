"""Which guest belongs on which host, and which hosts can be off. Pure: nothing here touches a host.

The real manager (`partywall.consolidate.measure`) and the simulation call the same policy.
"""
