"""Virtual users: compiles a program, runs it by agents, and merges, judges and stores its seconds.

Agents send the requests; charts are elsewhere. Only `prepared` and `tomcat` touch the host.
"""
