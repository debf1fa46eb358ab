"""A look at a ledger from elsewhere: a shell script, and its answer as values. Pure.

A host is looked at while it is measured, so this costs it a shell and a few small programs, and no Python. The script
changes nothing. The answer is lines and, after a line `data`, as many bytes as it says.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from partywall.fleet.ledger.lease import Lease, Seen, State, state_of

CHUNK = 1 << 20
"""The most bytes of a file that one look brings."""
SAYS = "partywall-fleet"
# Parts of shell scripts about a ledger: where it is, with `root` from an inventory, and the keeper of its `lease`.
ROOT = 'case $root in "") root=${PARTYWALL_FLEET:-/var/tmp/partywall-fleet-$(id -u)};; esac'
PID = 'pid=${lease#*\\"pid\\": }; pid=${pid%%,*}'
# Arguments: root, run, bytes at most; then names and offsets. No single quotes and no line ends, as in the bootstrap of
# sandboxes over ssh, so that every login shell passes it on unchanged.
_SCRIPT = (
    "LC_ALL=C; export LC_ALL; root=$1; run=$2; most=$3; shift 3",
    f'say() {{ printf "{SAYS} %s\\n" "$*"; }}',
    ROOT,
    "say boot $(cat /proc/sys/kernel/random/boot_id)",
    "say up $(cut -d. -f1 /proc/uptime)",
    "read load rest < /proc/loadavg; say load $load $(nproc)",
    'lease=$(cat "$root/lease.json" 2>/dev/null); say lease "$lease"',
    PID,
    'case $pid in ""|*[!0-9]*) ;; *) stat=$(cat /proc/$pid/stat 2>/dev/null) && say stat "${stat##*) }";; esac',
    'cd "$root/runs/$run" 2>/dev/null || { say end; exit 0; }',
    'for f in begun-*; do [ -e "$f" ] && say begun "${f#begun-}"; done',
    'for f in exit-*; do [ -e "$f" ] && say exit "${f#exit-}" "$(cat "$f")"; done',
    'find . -type f | while IFS= read -r f; do say file "$(stat -c %s "$f")" "${f#./}"; done',
    'while [ $# -ge 2 ]; do n=$(stat -c %s "$1" 2>/dev/null || echo 0); n=$((n - $2)); '
    '[ $n -gt $most ] && n=$most; if [ $n -gt 0 ]; then say data $2 $n "$1"; '
    'tail -c +$(($2 + 1)) "$1" | head -c $n; fi; shift 2; done',
    "say end",
)


def words(root: str, run: str, since: Mapping[str, int], most: int = CHUNK) -> list[str]:
    """The command. root: of the ledger; empty for the default. since: offsets by name."""
    pairs = [word for name, offset in since.items() for word in (name, str(offset))]
    return ["sh", "-c", "; ".join(_SCRIPT), "sh", root, run, str(most), *pairs]


def line(root: str, run: str, since: Mapping[str, int], most: int = CHUNK) -> str:
    """The same for a login shell."""
    return shlex.join(words(root, run, since, most))


@dataclass(frozen=True)
class Chunk:
    """A part of a file. offset: of its first byte."""

    name: str
    offset: int
    content: bytes


@dataclass(frozen=True)
class Look:
    """What a look brought: the state of the run, and parts of its files.

    load: tasks that run or wait for a disk, a CPU, on average of a minute; None if it is not known.
    """

    state: State
    chunks: tuple[Chunk, ...] = ()
    load: float | None = None


def parsed(answer: bytes, run: str) -> Look:
    """The values of an answer. ValueError if it is not whole."""
    facts: dict[str, str] = {}
    begun, exits, files, chunks = 0, {}, {}, []
    place, is_whole = 0, False
    while (end := answer.find(b"\n", place)) >= 0:
        said, place = answer[place:end].decode(errors="replace"), end + 1
        if not said.startswith(f"{SAYS} "):
            # Login scripts may print something.
            continue
        word, _, rest = said.removeprefix(f"{SAYS} ").partition(" ")
        match word:
            case "begun":
                begun = max(begun, int(rest))
            case "exit":
                number, _, text = rest.partition(" ")
                exits[int(number)] = text
            case "file":
                size, _, name = rest.partition(" ")
                files[name] = int(size)
            case "data":
                offset, length, name = rest.split(" ", 2)
                content = answer[place : place + int(length)]
                if len(content) < int(length):
                    raise ValueError(f"{name} was cut off")
                chunks.append(Chunk(name, int(offset), content))
                place += int(length)
            case "end":
                is_whole = True
            case _:
                facts[word] = rest
    if not is_whole or "boot" not in facts:
        raise ValueError("the answer is not whole")
    fields = facts.get("stat", "").split()
    # The state comes first here, because the name before it may contain anything (proc_pid_stat(5)).
    ticks = int(fields[19]) if len(fields) > 19 and fields[0] != "Z" else None
    lease = Lease.parsed(facts.get("lease", ""))
    state = state_of(run, lease, Seen(facts["boot"], int(facts["up"]) * 10**9, ticks), begun, exits)
    tasks, _, cpus = facts.get("load", "").partition(" ")
    load = float(tasks) / int(cpus) if cpus else None
    return Look(State(**{**vars(state), "files": files}), tuple(chunks), load)
