"""Counts the requests that the server was sent."""

from pathlib import Path

sent = Path("sent").read_text().count("GET ")
# Two users, a pause of 200 ms, one second.
print(f"{sent} requests,", "as written" if 2 <= sent <= 12 else "more or less than written")
