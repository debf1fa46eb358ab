"""What a scripted request costs the generator, beside k6 and Locust.

Each of 50 users asks for a page, takes a token out of it with a regular expression, asks for a second page with the
token, and checks what that says; connections are kept. nginx is on one core, the generator on the other, all in turn.
CPU time is user and system time of the generator's whole process. That of k6 and Locust is the difference between a
long and a short run, so that reading their scripts and starting up is left out; ours is counted from its start.
Locust's users are FastHttpUser, its cheapest kind. One process each: Locust and k6 would spread over more cores, which
costs them no less a request.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from common import Ratio
from frame import PEERS, Options, Outcome, bench
from generators import GENERATOR_CPU, load, nginx

USERS = 50
SHORT_S = 1
SECOND = 1_000_000_000
BARS = {"k6": 5.0, "locust": 10.0}

K6 = """
import http from 'k6/http';
import { check } from 'k6';
export const options = { vus: %(users)d, duration: '%(seconds)ds' };
export default function () {
  const token = /value='(\\w+)'/.exec(http.get('%(url)sfirst').body)[1];
  const second = http.get('%(url)ssecond?token=' + token, { tags: { name: 'second' } });
  if (!check(second, { welcome: (answer) => answer.body.includes('welcome') })) throw new Error('no welcome');
}
"""

LOCUST = """
import re
from locust import FastHttpUser, constant, task

VALUE = re.compile(r"value='(\\w+)'")

class Shopper(FastHttpUser):
    wait_time = constant(0)

    @task
    def shop(self):
        token = VALUE.search(self.client.get("/first").text)[1]
        with self.client.get("/second?token=" + token, name="second", catch_response=True) as answer:
            if "welcome" not in answer.text:
                answer.failure("no welcome")
"""


def program(url: str, seconds: int) -> dict[str, Any]:
    first = {"name": "first", "method": "GET", "url": f"{url}first"}
    first["extract"] = [{"into": "token", "from": {"regex": r"value='(\w+)'"}}]  # type: ignore[assignment]
    second = {"name": "second", "method": "GET", "url": f"{url}second?token=${{token}}"}
    second["checks"] = [{"contains": "welcome"}]  # type: ignore[assignment]
    stages = [{"to": USERS, "for_ns": 0}, {"to": USERS, "for_ns": seconds * SECOND}]
    return {
        "kinds": [{"name": "visitor", "actions": [{"http": first}, {"http": second}]}],
        "pacing": {"closed": {"stages": stages}},
        "grace_ns": SECOND,
    }


def ours(url: str, seconds: int, *, compress: bool = False) -> float:
    made = program(url, seconds)
    if compress:
        made["kinds"][0]["actions"].append({"compress": {"name": "more", "file_bytes": 20_000, "level": 6}})
    loaded = load(made)
    assert not loaded.summary.errors, loaded.summary.errors
    return loaded.summary.responses / (loaded.cpu_ns / 1e9)


def _run(argv: list[str], folder: str) -> tuple[str, float]:
    """What a command said, and the CPU seconds of it and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    pinned = ["taskset", "-c", str(GENERATOR_CPU), *argv]
    done = subprocess.run(pinned, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, f"{argv[0]}: {done.stderr[-2000:]}"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def k6(program_: str, url: str, seconds: int) -> tuple[int, float]:
    """(requests, CPU seconds)"""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        (Path(folder) / "script.js").write_text(K6 % {"users": USERS, "seconds": seconds, "url": url})
        quiet = ["--quiet", "--no-usage-report", "--summary-export=summary.json"]
        _, cpu_s = _run([program_, "run", *quiet, "script.js"], folder)
        said = json.loads((Path(folder) / "summary.json").read_text())["metrics"]
        assert said["checks"]["fails"] == 0, "a check did not hold"
        return int(said["http_reqs"]["count"]), cpu_s


def locust(program_: str, url: str, seconds: int) -> tuple[int, float]:
    """(requests, CPU seconds)"""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        (Path(folder) / "visit.py").write_text(LOCUST)
        how = ["--headless", "-u", str(USERS), "-r", str(USERS), "-t", f"{seconds}s", "--host", url.rstrip("/")]
        said, cpu_s = _run([program_, "-f", "visit.py", *how, "--json", "--loglevel", "ERROR"], folder)
        stats = json.loads(said[said.index("[") :])
        assert all(entry["num_failures"] == 0 for entry in stats), "a check did not hold"
        return sum(entry["num_requests"] for entry in stats), cpu_s


PEER_RUNS: Mapping[str, Callable[[str, str, int], tuple[int, float]]] = {"k6": k6, "locust": locust}


def marginal(name: str, program_: str, url: str, seconds: int) -> float:
    """Requests a CPU second beyond starting up."""
    few, start_s = PEER_RUNS[name](program_, url, SHORT_S)
    many, all_s = PEER_RUNS[name](program_, url, SHORT_S + seconds)
    return (many - few) / (all_s - start_s)


def find(name: str) -> str | None:
    path = os.pathsep.join([str(PEERS / "bin"), os.environ.get("PATH", "")])
    return shutil.which(name, path=path)


@bench(plants={"work": "our users also compress 20 kB each time"}, needs=("nginx",))
def main(options: Options) -> Outcome:
    seconds, pairs = (2, 3) if options.quick else (6, 7)
    peers = {name: tool for name in BARS if (tool := find(name))}
    ratios: dict[str, list[float]] = {name: [] for name in peers}
    with nginx() as url:
        for _ in range(pairs):
            own = ours(url, seconds, compress=bool(options.plant))
            said = [f"ours {own:8.0f}"]
            for name, program_ in peers.items():
                theirs = marginal(name, program_, url, seconds)
                said.append(f"{name} {theirs:7.0f}")
                ratios[name].append(own / theirs)
            print("requests a CPU second: " + ", ".join(said), flush=True)
    for name in BARS.keys() - peers.keys():
        print(f"{name} is not here: make bench-setup installs it where it is available")
    figures = [f"{Ratio(ratios[name])} times {name}'s" for name in peers]
    met = all(name in peers and statistics.median(ratios[name]) >= bar for name, bar in BARS.items())
    return Outcome("requests a CPU second: " + "; ".join(figures or ["no peer"]), met)


if __name__ == "__main__":
    main()
