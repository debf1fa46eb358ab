"""Enforce guaranteed bit/s and packets/s for each vif, and show that they are kept."""
