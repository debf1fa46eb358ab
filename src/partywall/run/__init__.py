"""The isolation matrix of a host: victims run all the time, and neighbours are switched on and off beside them."""
