"""Sleep, and say how much longer each sleep takes than it should."""
