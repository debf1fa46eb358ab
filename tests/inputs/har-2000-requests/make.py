"""Writes a recording of 2,000 requests, each with a value of the response before; then imports it in ten seconds.

The seconds are CPU time, because the machine may be busy.
"""

import hashlib
import json
import resource
import subprocess
import sys
from pathlib import Path

REQUESTS, LIMIT_S = 2000, 10.0


def value(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()[:12]


def entry(number: int) -> dict[str, object]:
    text = json.dumps([{"id": value(number * 20 + place), "text": "x" * 200} for place in range(20)])
    url = f"http://127.0.0.1:8099/item/{value(max(number - 1, 0) * 20 + 3)}?sort=a1b2c3d4{number:04}"
    started = f"2026-01-05T{10 + number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}Z"
    response = {"status": 200, "headers": [], "content": {"mimeType": "application/json", "text": text}}
    return {"startedDateTime": started, "time": 20, "request": {"method": "GET", "url": url}, "response": response}


Path("session.har").write_text(json.dumps({"log": {"entries": [entry(number) for number in range(REQUESTS)]}}))
subprocess.run([sys.executable, "-m", "partywall", "load", "import", "session.har", "-o", "plan.yaml"], check=True)
spent = resource.getrusage(resource.RUSAGE_CHILDREN)
seconds = spent.ru_utime + spent.ru_stime
print("in time" if seconds <= LIMIT_S else f"{seconds:.1f} s of CPU time are more than {LIMIT_S:g} s")
