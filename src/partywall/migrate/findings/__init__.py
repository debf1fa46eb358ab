"""What migrations cost, and what one is going to cost: pure functions of their records."""
