"""Kills of the connection, the server and the runner at random moments, while runs are measured and controlled.

A person starts, pauses, resumes and extends runs. At each moment one of three things happens: a watching connection
is cut, the server is killed with SIGKILL and started again, or the runner is. A request that got no answer is sent
again with the same key, as a browser's reload does.

Bar: every job was started once and measured to its end; no action happened twice and none was lost; raw events of a
connection that was cut continue without a gap or a repetition; the page is the same before and after a reload.

--quick: 6 moments.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import time
from collections.abc import Iterator

from common import until
from frame import Options, Outcome, bench
from web_site import SCENARIO, Site, runners, site


def kill_runner(where: Site) -> None:
    for pid in runners(where.root)[:1]:
        os.kill(pid, signal.SIGKILL)


class Reader:
    """A program that follows a journal over connections that are cut."""

    def __init__(self, where: Site, record: str) -> None:
        self.where, self.record, self.last, self.seen = where, record, "0", list[str]()

    def read(self, for_s: float) -> None:
        """Reads events for some time, then cuts the connection, perhaps inside an event."""
        connection = http.client.HTTPConnection("127.0.0.1", self.where.port, timeout=for_s)
        headers = {"last-event-id": self.last, "cookie": self.where.cookie}
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", f"/api/records/{self.record}/events", headers=headers)
            answer = connection.getresponse()
            ends, identity = time.monotonic() + for_s, ""
            while time.monotonic() < ends and (line := answer.readline().decode()):
                if line.startswith("id: "):
                    identity = line[4:].strip()
                elif line.startswith("data: "):
                    self.seen.append(line[6:].strip())
                    self.last = identity
        connection.close()


def sent(where: Site, path: str, content: object, key: str, *, plant: bool) -> None:
    """Sends a request until it is answered."""
    for number in range(200):
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            answer = where.api("POST", path, content, f"{key}-{number}" if plant else key)
            if "problems" not in answer:
                return
            raise RuntimeError(f"{path}: {answer}")
        where.answers() or where.start()
    raise TimeoutError(f"{path} was never answered")


def disturbed(
    where: Site, reader: Reader, moments: int, chance: random.Random, *, plant: bool
) -> tuple[dict[str, int], int]:
    """Kills something at each moment, and asks for a job at every third. Returns the kills and the number of jobs."""
    kills = dict.fromkeys(("connection", "server", "runner"), 0)
    requests = 0
    order = {"kind": "run", "document": SCENARIO.format(budget="2s")}
    for moment in range(moments):
        reader.read(chance.uniform(0.2, 1.5))
        what = chance.choice(list(kills)) if moment > 2 else list(kills)[moment]
        kills[what] += 1
        if what == "server":
            where.kill()
        elif what == "runner":
            kill_runner(where)
        # While nothing may answer, something is requested. The answer is lost, so it is requested again.
        if moment % 3 == 0:
            requests += 1
            for repetition in range(2):
                sent(where, "/api/jobs", order, f"job-{moment:05}" + (f"-{repetition}" if plant else ""), plant=plant)
        if not where.answers():
            where.start()
    return kills, requests


def paused_and_resumed(where: Site, *, plant: bool) -> int:
    """Pauses the first job, kills the server, and resumes with a repeated request. Returns the attempts until then."""
    sent(where, "/api/jobs/first-job/pause", {}, "pause-0001", plant=plant)
    until(lambda: where.jobs()[0]["state"] in ("paused", "ended"), 60, "not paused")
    attempts = int(where.jobs()[0]["attempt"])
    if where.jobs()[0]["state"] == "paused":
        where.kill()
        where.start()
        for _ in range(3):
            sent(where, "/api/jobs/first-job/resume", {}, "resume-0001", plant=False)
    return attempts


def faults(where: Site, reader: Reader, jobs_wanted: int, attempts: int) -> Iterator[str]:
    """What was lost or happened twice."""
    jobs = where.jobs()
    if len(jobs) != jobs_wanted:
        yield f"{len(jobs)} jobs instead of {jobs_wanted}"
    for job in jobs:
        events = (where.root / job["record"] / "events.jsonl").read_text().splitlines()
        begun = sum('"kind": "run_started"' in line for line in events)
        most = attempts + 1 if job["id"] == "first-job" else 1
        if job["exit"] not in (0, 1, 3) or begun > most or job["attempt"] > most:
            yield f"{job['id']}: exit {job['exit']}, begun {begun} times, {job['attempt']} attempts"
    lines = (where.root / reader.record / "journal.jsonl").read_text().splitlines()
    if [json.loads(line) for line in reader.seen] != [json.loads(line) for line in lines]:
        yield f"{len(reader.seen)} events read of {len(lines)} written"
    pages = [where.get(f"/records/{reader.record}")[2].partition('id="live"')[2] for _ in range(2)]
    if len({page.partition("Note and tags")[0] for page in pages}) > 1:
        yield "the page differs after a reload"


@bench(
    plants={"keys": "requests that got no answer are sent again with new keys"},
    more={"--seed": {"type": int, "default": 1}},
)
def main(given: Options) -> Outcome:
    moments = 6 if given.quick else 30
    with site() as where:
        where.login()
        document = SCENARIO.format(budget="12s" if given.quick else "60s")
        sent(where, "/api/jobs", {"kind": "run", "document": document}, "first-job", plant=False)
        until(lambda: where.jobs() and (where.root / where.jobs()[0]["record"] / "journal.jsonl").is_file(), 60)
        reader = Reader(where, where.jobs()[0]["record"])
        kills, requests = disturbed(where, reader, moments, random.Random(given.seed), plant=bool(given.plant))
        attempts = paused_and_resumed(where, plant=bool(given.plant))
        until(
            lambda: all(job["state"] == "ended" for job in where.jobs()), 120 + 60 * requests, "the queue is not empty"
        )
        reader.read(1.5)
        wrong = list(faults(where, reader, requests + 1, attempts))
    print(*wrong, sep="\n")
    listed = ", ".join(f"{count} × {name}" for name, count in kills.items())
    figure = f"{moments} kills ({listed}), {requests + 1} jobs, {len(reader.seen)} events: {len(wrong)} faults"
    return Outcome(figure, not wrong)


if __name__ == "__main__":
    main()
