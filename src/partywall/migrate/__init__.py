"""Move a guest between hosts while it works, and measure what that does to its users.

It is watched from the guest, its QEMUs and its clients. The two hosts are network namespaces on this machine
(`measure.network`), or hosts of the user's own (`measure.owned`). What the figures mean is `findings`' matter.
"""
