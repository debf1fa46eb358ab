"""Sandboxes on existing machines, reached by the user's own `ssh`.

An agent is copied there, started and removed. Keys, passwords and host names are handled by the user's OpenSSH client
and its configuration.
"""

from partywall.sandbox.ssh.backend import Ssh
from partywall.sandbox.ssh.connection import machine_agent, survey, version

__all__ = ["Ssh", "machine_agent", "survey", "version"]
