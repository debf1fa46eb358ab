"""A session of a browser becomes a plan: recorded by a proxy, or read from a HAR file."""
