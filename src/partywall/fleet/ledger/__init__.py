"""The ledger of a measured host: who may measure on it, until when, and what became of each run.

It is a folder on the host itself, so that it stays true whatever happens to the controller, the network or an engine:

* `lease.json`: the one lease of the host, with its grant, a number that only rises;
* `ledger.jsonl`: a line for everything that was granted, begun, refused and ended;
* `runs/RUN/`: the order, the record while it grows, and for each attempt `begun-N` and `exit-N`.

Modules that stay in memory while the host is measured import nothing heavy.
"""
