"""Find out by experiment which neighbour slows a program down, through what, and what would help."""
