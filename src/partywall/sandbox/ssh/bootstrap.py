"""The shell script that runs on the other machine before the agent, and its answers. Pure.

It works with any login shell. It creates a folder, finds the agent or reads it from standard input, and then watches
it: when the agent ends for any reason, it removes the folder. If the script is killed, the next start removes the
folder: a process that has ended has no `exe`, even if nobody has waited for it. The script contains neither single
quotes nor line ends, so that every shell passes it on unchanged.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

SAYS = "partywall"
# Arguments: folder, accepted hashes, number of bytes sent, architecture, run; then the agent's own.
_SCRIPT = (
    "LC_ALL=C; export LC_ALL; umask 077",
    f'say() {{ printf "{SAYS} %s\\n" "$*"; }}',
    "no() { say no $*; exit 3; }",
    "base=$1; hashes=$2; size=$3; machine=$4; PARTYWALL_RUN=$5; export PARTYWALL_RUN; shift 5",
    '[ "$(uname -s)" = Linux ] || no system "$(uname -s)"',
    '[ "$(uname -m)" = "$machine" ] || no architecture "$(uname -m)"',
    "for tool in sha256sum gzip head; do command -v $tool >/dev/null || no tool $tool; done",
    'for old in "$base"/partywall-ssh-$(id -u)-*; do pid=${old##*-}; '
    '[ -d "$old" ] && [ -O "$old" ] && { [ -e /proc/"$pid"/exe ] || rm -rf "$old"; }; done',
    'set -f; d=$base/partywall-ssh-$(id -u)-$$; e=$(mkdir "$d" 2>&1) || no folder "$e"',
    'trap "rm -rf \\"$d\\"" EXIT; trap "exit 3" HUP INT TERM',
    'good() { [ -f "$1" ] || return 1; '
    'case " $hashes " in *" $(sha256sum < "$1" 2>/dev/null | cut -c1-64) "*) return 0;; esac; return 1; }',
    "agent=$(command -v partywall-agent || true)",
    'good "$agent" || { agent=$d/agent; say want; '
    'e=$({ head -c "$size" | gzip -dc > "$agent"; } 2>&1) || no copy "$e"; '
    'good "$agent" || no hash; chmod 700 "$agent"; }',
    'e=$("$agent" --version 2>&1) || no execute "$e"',
    'e=$(cd "$d" 2>&1) || no folder "$e"; cd "$d"; say ready "$d"',
    '"$agent" "$@"',
)


def command(base: str, hashes: Sequence[str], size: int, machine: str, run: str, agent: Sequence[str]) -> str:
    """The command line for the other machine's login shell. agent: its arguments."""
    script = "; ".join(_SCRIPT)
    return shlex.join(["exec", "sh", "-c", script, "sh", base, " ".join(hashes), str(size), machine, run, *agent])


@dataclass(frozen=True)
class Answer:
    """A line of the script. word: want, ready or no; rest: a folder, or the reason with the machine's message."""

    word: str
    rest: str


def answer(line: bytes) -> Answer | None:
    """Parses a line of output; None for output of login scripts."""
    said, _, rest = line.decode(errors="replace").strip().partition(" ")
    if said != SAYS:
        return None
    word, _, rest = rest.partition(" ")
    return Answer(word, rest)


_ELSEWHERE = "give another folder that exists on both machines with --work-dir"
# The script's code → its meaning and a remedy. {said}: the machine's message; {base}: the folder.
_REFUSALS = {
    "system": "it runs {said}, and agents need Linux; name a Linux machine",
    "architecture": "its processor is {said}, and this host's agent is for another; name a machine with this host's "
    "architecture",
    "tool": "it has no {said}, which is needed to copy the agent; install it there",
    "folder": "no folder can be made in {base} there: {said}; " + _ELSEWHERE,
    "copy": "the agent could not be copied to {base} there: {said}; free some space there, or " + _ELSEWHERE,
    "hash": "the agent arrived damaged in {base} there; check the free space there and the connection",
    "execute": "the agent cannot be executed in {base} there: {said}; is it mounted noexec? " + _ELSEWHERE,
}


def refusal(rest: str, base: str) -> str:
    """Why the script gave up, with a remedy."""
    why, _, said = rest.partition(" ")
    return _REFUSALS.get(why, "it said {why!r}, which this version does not know").format(why=why, said=said, base=base)
