"""Sandboxes on machines that exist already, reached by the user's own `ssh`.

An agent is copied there, started and taken away. Deliberately not here: keys, passwords, host names. All of that is the
user's OpenSSH client's, with its configuration.
"""

from partywall.sandbox.ssh.backend import Ssh
from partywall.sandbox.ssh.connection import machine_agent, survey, version

__all__ = ["Ssh", "machine_agent", "survey", "version"]
