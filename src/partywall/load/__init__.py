"""Virtual users: a program compiled, carried out by agents, its seconds merged, judged and kept.

Deliberately not here: sending requests, which the agent does, and drawing. Only `prepared` and `tomcat` touch the host.
"""
