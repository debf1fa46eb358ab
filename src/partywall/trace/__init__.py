"""Follow packets along a path of interfaces: delay, loss and reordering from hop to hop."""
