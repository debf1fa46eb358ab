"""Settings of this host that a measurement changes for its time, and restores: a file each, and the table of all."""
