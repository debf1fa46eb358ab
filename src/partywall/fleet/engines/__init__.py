"""How requests reach the ledgers of hosts. One file an engine; other packages add theirs as `partywall.engines`."""
