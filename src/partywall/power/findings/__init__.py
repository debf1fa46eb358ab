"""What readings of power meters mean: a model of a node, its shares, and the energy of a move. Pure functions."""
