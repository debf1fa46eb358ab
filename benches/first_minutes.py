"""A newcomer's first minutes: a fresh clone, `make demo`, `make test`, as the README says.

The clone is made from this repository's last commit into a temporary folder. Timed: the set-up that the demo needs
(`make install`), and the demo's own run, which must always show what it is doing and how long is left: no gap between
two lines of its output may be longer than fifteen seconds. --quick takes set-up and agent from this checkout, gives the
demo its smallest budget, and leaves out `make test`: set-up and tests run for minutes. --before COMMIT times the set-up
of that version (`make setup`) too. Crates and Python packages that this user has downloaded before are not downloaded
again.

Bar: all succeed; the demo's own run takes at most three minutes, which is a minute more than its budget (quick: a
minute more than its smaller one); a report is written; no silent gap. With --before, the set-up takes at most half of
the time of before.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from common import PARTYWALL, spoilt_python
from frame import Options, Outcome, bench
from partywall.agent import binary

ROOT = Path(__file__).parents[1]
SILENCE_S = 15.0
BUDGET_S, QUICK_BUDGET_S = 120, 72


def watched(argv: Sequence[str], folder: Path, **more: str) -> tuple[int, float, float, str]:
    """(exit code, seconds, longest silence, output) of a command. more: of its environment."""
    # A benchmark's own interpreter and agent must not be what the clone uses.
    own = ("VIRTUAL_ENV", "PARTYWALL_AGENT", "PYTHONPATH")
    env = {key: value for key, value in os.environ.items() if key not in own} | more
    began = last = time.monotonic()
    silence, lines = 0.0, []
    with subprocess.Popen(
        argv, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            silence, last = max(silence, time.monotonic() - last), time.monotonic()
            lines.append(line)
    return process.returncode, time.monotonic() - began, silence, "".join(lines)


def demo(clone: Path, first: str, *, quick: bool) -> tuple[int, float, float, str]:
    """As `watched`. What the demo finds is no fault: its exit codes to 3 are as good as 0. first: of $PYTHONPATH."""
    if not quick:
        return watched(["make", "demo"], clone, **({"PYTHONPATH": first} if first else {}))
    argv = [*PARTYWALL, "run", "demo", "--budget", f"{QUICK_BUDGET_S}s"]
    places = os.pathsep.join([*([first] if first else []), str(clone / "src")])
    code, *rest = watched(argv, clone, PYTHONPATH=places)
    return (0 if code in (0, 1, 3) else code, *rest)


def set_up(commit: str, folder: Path, target: str) -> float:
    """Seconds of the set-up in a fresh clone of a commit; the last one if it is empty. RuntimeError if it fails."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    if commit:
        subprocess.run(["git", "-C", str(folder), "checkout", "--quiet", commit], check=True)
    code, seconds, _, output = watched(["make", target], folder)
    if code:
        raise RuntimeError(f"make {target} ended with {code}: {output[-500:]}")
    return seconds


@bench(
    plants={"silent": "16 silent seconds before the demo says anything"},
    unjudged="the clone's own set-up, and its tests",
    more={"--before": {"metavar": "COMMIT", "default": "", "help": "the version whose set-up is timed too"}},
)
def main(options: Options) -> Outcome:
    wrong = []
    set_up_text, tests = "taken from here", "not run"
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        clone = Path(name) / "partywall"
        if options.quick:
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
            agent = clone / "src/partywall/_bin/partywall-agent"
            agent.parent.mkdir()
            shutil.copy2(binary.find(), agent)
        else:
            set_up_s = set_up("", clone, "install")
            set_up_text = f"{set_up_s:.0f} s"
            if options.before:
                before_s = set_up(options.before, Path(name) / "before", "setup")
                set_up_text += f" ({set_up_s / before_s:.2f} of the {before_s:.0f} s of before)"
                wrong += [] if set_up_s <= before_s / 2 else ["the set-up takes more than half of the time of before"]
        with spoilt_python("import time; time.sleep(16)") if options.plant else contextlib.nullcontext("") as first:
            code, demo_s, silence_s, output = demo(clone, first, quick=options.quick)
        print(output)
        wrong += [f"the demo ended with {code}"] if code else []
        most_s = (QUICK_BUDGET_S if options.quick else BUDGET_S) + 60
        wrong += [f"the demo took {demo_s:.0f} s"] if demo_s > most_s else []
        wrong += [f"the demo was silent for {silence_s:.0f} s"] if silence_s > SILENCE_S else []
        wrong += [] if list(clone.glob("runs/*/report.html")) else ["no report was written"]
        if not options.quick:
            code, tests_s, _, output = watched(["make", "test"], clone)
            wrong += [f"make test ended with {code}: {output[-2000:]}"] if code else []
            tests = f"{tests_s:.0f} s"
    for problem in wrong:
        print(problem)
    demo_text = f"demo {demo_s:.0f} s of at most {most_s} (longest silence {silence_s:.0f} s)"
    figure = f"set-up {set_up_text}, {demo_text}, tests {tests}"
    return Outcome(figure, not wrong)


if __name__ == "__main__":
    main()
