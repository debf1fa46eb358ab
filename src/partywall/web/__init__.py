"""The web page: start, watch, control and compare measurements from a browser.

Two processes share a folder of records. The server (`web.app`) only reads it. Everything that changes something is an
action of the runner (`web.runner`), a small process with a fixed list of actions, so that the server may be
unprivileged. Each job is a process of its own, so it survives both.

    browser ── HTTP ──▶ server ── one JSON line, Unix socket ──▶ runner ── starts ──▶ partywall run …
       ▲                   │                                                              │
       └── server-sent ────┴──────────────── reads the journal ◀───────── writes ─────────┘
"""
