"""The engine for nodes of a Slurm cluster. A run holds its node as an exclusive job; requests are steps beside it.

The job does what is left in a folder of its own, so that what it starts is a part of it and outlives the steps. It ends
a while after its run has. A number of a job is given out again after a crash of Slurm's controller, so a job is known
by its comment: the run, the host, the attempt that was asked for, the token, and a word that names the folder. Slurm
does not start it a second time (`--no-requeue`), and if it did, the ledger would not begin the attempt again.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import secrets
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from partywall.fleet.engines.calling import TIMEOUT_S, Calling, shell
from partywall.fleet.engines.cluster import HOLD_S, KEEPER, Command, Listed, keeper_of
from partywall.fleet.engines.engine import Unreachable
from partywall.fleet.inventory import Place
from partywall.fleet.ledger.granting import OLDER, Order
from partywall.fleet.ledger.lease import Phase, State
from partywall.fleet.ledger.look import Look

MARK = "partywall"
"""The first word of a job's comment, and its name."""
BEGINS_S = 10.0
"""How long an order waits for its job, so that what its ledger says is told at once."""
UNASKED_S = 4.0
"""What is said to be left of a lease that is still to be asked for: less than half of the shortest one."""
LOOK_S = 0.5
"""How old what is known of jobs may be, and how often it is looked whether one has begun."""
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT")
OVER = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "REVOKED", "TIMEOUT"),
)
_TASKS = re.compile(r"srun: (?:error: \S+ tasks? [\d,-]+: (?:Exited|Killed|Terminated)|Terminating ).*")
_BUSY = "Requested nodes are busy"
_LASTING = re.compile(r"invalid|not configured|unknown|not permitted|denied|requires", re.IGNORECASE)
_OWN = ("SLURM_", "SBATCH_", "SRUN_", "PARTYWALL_")
# The job. Its arguments stand before it as variables. Where Slurm does not track processes by groups (cgroup), a keeper
# would outlive the job.
_JOB = """\
mkdir -m 700 "$box" || exit 1
trap 'rm -rf "$box"' EXIT
trap 'sh -c "$ends"; exit 1' TERM
idle=0
while [ $idle -lt $hold ]; do
  if [ -e "$box/command" ]; then
    mv "$box/command" "$box/taken"
    sh -c "$(cat "$box/taken")" < "$box/given" > "$box/out" 2> "$box/err"
    echo $? > "$box/code.new"
    mv "$box/code.new" "$box/code"
    idle=0
  fi
  [ $((idle % 5)) = 4 ] && sh -c "$goes_on" && idle=0
  idle=$((idle + 1))
  sleep 1
done
"""
# A step that leaves a command in the job's folder, and says what came of it. Arguments: the folder, the command.
_ASK = (
    'for n in 1 2 3 4 5 6 7 8 9; do [ -d "$1" ] && break; sleep 1; done; '
    'exec 9> "$1/lock" && flock -w 30 9 || { echo "its job has begun nothing yet" >&2; exit 75; }; '
    'rm -f "$1/code"; cat > "$1/given" && printf %s "$2" > "$1/command.new" && mv "$1/command.new" "$1/command" && '
    'until [ -e "$1/code" ]; do sleep 0.1; done; '
    'cat "$1/out"; cat "$1/err" >&2; code=$(cat "$1/code"); exit "${code:-75}"'
)


@dataclass(frozen=True)
class Job:
    """A job of Slurm that was submitted for an attempt. why: what Slurm says of its state."""

    number: str
    state: str
    why: str
    run: str
    host: str
    attempt: int
    token: int
    word: str

    @property
    def waits(self) -> bool:
        return self.state in WAITING

    @property
    def runs(self) -> bool:
        return self.state == "RUNNING"

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    @property
    def box(self) -> str:
        """Its folder on the node."""
        return _box(self.word)

    @classmethod
    def parsed(cls, listing: str) -> Iterator[Job]:
        """Those that are ours, of lines with number|state|reason|comment."""
        for line in listing.split("\n"):
            number, state, why, comment = (*line.split("|", 3), "", "", "")[:4]
            match comment.split(" "):
                case [mark, run, host, attempt, token, word] if mark == MARK and (attempt + token).isdigit():
                    yield cls(number, state, why, run, host, int(attempt), int(token), word)


class Slurm(Calling):
    """Nodes of a cluster, by their names or `slurm_node`. `slurm_args` are further options, such as --partition."""

    OWN_WORDS = _TASKS

    def __init__(self, places: Sequence[Place]) -> None:
        super().__init__(places)
        self._listed = Listed(self._list, LOOK_S)
        self._command = Command("slurm-client", "scontrol ping", _LASTING, self.environment())

    def ensure(self, host: str, order: Order, token: int) -> State:
        """Submits a job for the run if it has none, and asks the ledger through it. STARTING while the job waits."""
        job = self._job(host, order.run)
        if job is None and not self._is_held(host, order.run):
            self._submit(host, order, token)
            until = time.monotonic() + BEGINS_S
            while ((job := self._job(host, order.run)) is None or job.waits) and time.monotonic() < until:
                time.sleep(LOOK_S)
        return _waits(job) if job is not None and job.waits else super().ensure(host, order, token)

    def stop(self, host: str, run: str, token: int) -> State:
        job = self._job(host, run)
        if job is None or not job.waits:
            return super().stop(host, run, token)
        if token < job.token:
            return State(Phase.REFUSED, job.attempt - 1, why=OLDER)
        self._changed(["scancel", job.number])
        return State(Phase.STOPPED, job.attempt - 1, why="it was stopped")

    def state(self, host: str, run: str) -> State:
        """What is known of a run. Nothing is, if it has no job and the node is busy with those of others."""
        try:
            return self.fetch(host, run, {}).state
        except Unreachable as error:
            if _BUSY in str(error):
                return State(Phase.NONE)
            raise

    def fetch(self, host: str, run: str, since: Mapping[str, int]) -> Look:
        job = self._job(host, run)
        if job is not None and job.waits:
            return Look(_waits(job))
        look = super().fetch(host, run, since)
        last = job or next((each for each in reversed(self._jobs(host)) if each.run == run), None)
        if last is None or look.state.phase.is_going:
            return look
        state, ended = look.state, f"Slurm ended its job {last.number} ({last.state})"
        if state.attempt < last.attempt:
            unasked = State(Phase.STARTING, last.attempt, left_s=UNASKED_S)
            refused = State(Phase.REFUSED, state.attempt, why=ended, files=state.files)
            state = refused if last.is_over else unasked
        elif state.phase is Phase.DIED and last.is_over:
            state = dataclasses.replace(state, why=f"{state.why}; {ended}")
        return dataclasses.replace(look, state=state)

    def argv(
        self, place: Place, words: Sequence[str], *, begins: bool = False, seconds: float = TIMEOUT_S
    ) -> list[str]:
        """A step beside one of our jobs on the node, or a short job of its own if there is none."""
        alive = [job for job in self._jobs(place.name) if not job.is_over and not job.waits]
        carrier = next((job for job in alive if job.runs), None)
        if carrier is None and (begins or alive):
            state = f"is {alive[0].state}" if alive else "has ended"
            raise Unreachable(f"{place.name}: its job {state}; look at: squeue --nodelist={_node(place)}")
        if carrier is None:
            # A job that is one request ends with it. One that Slurm's controller has forgotten to end, because it was
            # killed, would keep the node from ours until its limit.
            through = ["--immediate=5", *_options(place), f"--time={math.ceil(seconds / 60)}"]
        else:
            through = [f"--jobid={carrier.number}", "--overlap"]
            words = ["sh", "-c", _ASK, "sh", carrier.box, shlex.join(words)] if begins else words
        where = [f"--nodelist={_node(place)}", "--nodes=1", "--ntasks=1", "--chdir=/", "--quiet", "--propagate=NONE"]
        return ["srun", *through, *where, *words]

    def explained(self, place: Place, said: str, code: int) -> str:
        last = said.rpartition("\n")[2]
        if last.startswith("srun: "):
            return f"Slurm: {last.removeprefix('srun: error: ')}; look at: sinfo --nodes={_node(place)}"
        return super().explained(place, said, code)

    def lasts(self, done: subprocess.CompletedProcess[bytes]) -> bool:
        """What Slurm itself could not do now, it may do later."""
        return b"srun: " not in done.stderr and super().lasts(done)

    def environment(self) -> Mapping[str, str]:
        """Without what belongs to a job that this may run in, and to Partywall here."""
        return {name: value for name, value in os.environ.items() if not name.startswith(_OWN) or name == "SLURM_CONF"}

    def _is_held(self, host: str, run: str) -> bool:
        """Whether another run of ours goes on there, whose ledger would refuse this one."""
        others = [job for job in self._jobs(host) if job.runs and job.run != run]
        return any(self.state(host, job.run).phase.is_going for job in others)

    def _submit(self, host: str, order: Order, token: int) -> None:
        place, word = self._places[host], secrets.token_hex(4)
        root = place.variables.get("partywall_ledger", "")
        asks = ["sh", "-c", KEEPER, "sh", root, keeper_of(order.run)]
        given = {
            "box": _box(word), "hold": str(HOLD_S),
            "goes_on": shlex.join(shell(asks, place)), "ends": shlex.join(shell([*asks, "TERM"], place)),
        }  # fmt: skip
        script = "".join(["#!/bin/sh\n", *(f"{name}={shlex.quote(value)}\n" for name, value in given.items()), _JOB])
        comment = f"{MARK} {order.run} {host} {order.attempt} {token} {word}"
        where = [f"--nodelist={_node(place)}", "--nodes=1", "--ntasks=1", "--chdir=/", "--output=/dev/null"]
        what = ["--exclusive", "--no-requeue", "--propagate=NONE", f"--job-name={MARK}", f"--comment={comment}"]
        self._changed(["sbatch", *where, *what, "--mem=0", *_options(place)], script.encode())

    def _job(self, host: str, run: str) -> Job | None:
        """The job of a run, unless it is over."""
        return next((job for job in self._jobs(host) if job.run == run and not job.is_over), None)

    def _jobs(self, host: str) -> tuple[Job, ...]:
        """Our jobs for a host, in the order of their submission. Slurm forgets those that are over after minutes."""
        return tuple(job for job in self._listed.now() if job.host == host)

    def _list(self) -> tuple[Job, ...]:
        argv = ["squeue", "--me", "--noheader", "--states=all", "--sort=V", "--format=%i|%T|%r|%k"]
        return tuple(Job.parsed(self._command.called(argv).decode(errors="replace")))

    def _changed(self, argv: Sequence[str], given: bytes = b"") -> None:
        """Runs a command after which jobs are listed again."""
        self._command.called(argv, given)
        self._listed.forget()


def _options(place: Place) -> list[str]:
    return shlex.split(place.variables.get("slurm_args", ""))


def _node(place: Place) -> str:
    return place.variables.get("slurm_node", place.name)


def _box(word: str) -> str:
    return f"/tmp/partywall-job-{word}"  # noqa: S108 - the job makes it, for its user alone


def _waits(job: Job) -> State:
    return State(Phase.STARTING, job.attempt, why=f"its job {job.number} waits ({job.why})")
