"""Live migrations of guests between two hosts: carried out, watched from the guest, its QEMUs and its clients.

The two hosts are network namespaces on this machine (`measure.network`). What the figures mean is `findings`' matter.
"""
