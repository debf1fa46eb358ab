"""The first five minutes: from the deb on a stock Debian 13 to a first verdict.

A fresh root of Debian 13 holds what a stock host has. There, as docs/install.md says: apt installs the deb with what it
recommends, `partywall doctor` says what the host can do, and `partywall run demo` measures. All three together must
take at most five minutes, and end with a verdict for a cell and a report. The processor is this host's: nothing is
emulated. apt downloads from the mirror of this host's Debian.

The deb is made of the last commit with the agent of this checkout, which is not timed; --deb takes one that was made
before. --quick gives the demo its smallest budget. `first_minutes.py` times the way from a clone.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from frame import Options, Outcome, bench

sys.path.insert(0, str(Path(__file__).parents[1]))

from first_minutes import QUICK_BUDGET_S
from labs.release import roots
from labs.release.target import TOOLS
from partywall.units import counted
from release import built_agents, made
from wheel import timed

BAR_S = 300
AGENT = "usr/lib/partywall/lib/python3.13/site-packages/partywall/_bin/partywall-agent"


def deb(folder: Path, options: Options) -> Path:
    """The package: a given one, or one that is made now."""
    if options.deb:
        return Path(options.deb)
    words = ("--machine", "x86_64", "--only", "deb13")
    (package,) = made(folder, words, built_agents(folder)).glob("*+deb13_amd64.deb")
    return package


def judged(record: Path) -> list[str]:
    """The cells of the demo's record that have a verdict of their effect."""
    cells = json.loads((record / "findings.json").read_text())["cells"]
    return [cell["label"] for cell in cells if cell["effect"] != "not_known"]


@bench(
    plants={"agent": "the package lacks the agent"},
    needs=("mmdebstrap", "git"),
    lacking=lambda: "" if os.geteuid() == 0 and TOOLS.exists() else "it needs root, and make bench-setup",
    more={"--deb": {"help": "a package that was made before"}},
)
def main(options: Options) -> Outcome:
    demo = ["partywall", "run", "demo", "--out", "demo"]
    demo += ["--budget", f"{QUICK_BUDGET_S}s"] if options.quick else []
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name, roots.fresh("deb13") as root:
        package = deb(Path(name), options)
        shutil.copy(package, root / "root")
        steps = {
            "apt install": (["apt-get", "install", "-y", "-qq", f"./{package.name}"], (0,)),
            "doctor": (["partywall", "doctor"], (0,)),
            "demo": (demo, (0, 1, 3)),
        }
        seconds, wrong = {}, []
        for step, (argv, codes) in steps.items():
            seconds[step], code, output = timed([*roots.inside(root), *argv], root, os.environ)
            wrong += [] if code in codes else [f"{step} ended with {code}: {output.strip()[-300:]}"]
            if options.plant and step == "apt install":
                (root / AGENT).unlink()
        print("\n".join([output[-2000:], *wrong]), flush=True)
        record = root / "root/demo"
        verdicts = judged(record) if (record / "report.html").exists() else []
    total = sum(seconds.values())
    parts = ", ".join(f"{step} {each:.0f} s" for step, each in seconds.items())
    figure = f"{total:.0f} s to {counted(len(verdicts), 'verdict')}: {parts}"
    return Outcome(figure, not wrong and bool(verdicts) and total <= BAR_S)


if __name__ == "__main__":
    main()
