"""Watch the disks of this host: say when one is slow, and which tenants use it then."""
