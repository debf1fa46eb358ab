"""Traces datagrams over a path on which netem delays by 5 ms and drops 10 %, and says what was seen, as JSON.

The truth about loss is netem's own counter of drops; where this kernel has no netem, nothing is lost nor delayed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from namespaces import NAMES, in_background, joined, run

NETEM = f"tc -n {NAMES[0]} qdisc add dev va root netem delay 5ms loss 10% limit 10000"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, joined():
        netem = run(NETEM).returncode == 0
        sender = in_background(600, 300, 200)
        out = Path(folder) / "trace"
        hops = [f"{NAMES[0]}/va", f"{NAMES[1]}/vb"]
        command = [
            "partywall",
            "trace",
            *hops,
            "--protocol",
            "udp",
            "--for",
            "8s",
            "--budget",
            "50%",
            "--out",
            str(out),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        os.kill(sender, 9)
        print(done.stdout)
        if done.returncode:
            return done.returncode
        (step,) = json.loads((out / "findings.json").read_text())["ways"][0]["steps"]
        seen = {"delay_ms": step["delay_ns"]["p50"] / 1e6, "lost": step["lost_share"]}
        print(json.dumps({"netem": netem, "dropped": dropped()} | seen))
        return 0


def dropped() -> float:
    """Share of its packets that netem dropped, by its own count."""
    text = run(f"tc -s -n {NAMES[0]} qdisc show dev va root").stdout
    sent = re.search(r"Sent \d+ bytes (\d+) pkt \(dropped (\d+)", text)
    if sent is None:
        return 0.0
    passed, lost = map(int, sent.groups())
    return lost / max(1, passed + lost)


sys.exit(main())
