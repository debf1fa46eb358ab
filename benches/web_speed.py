"""How soon pages are usable: a matrix of 10,000 cells, a folder of 2,000 records, and the delay of live updates.

The matrix is that of a run in progress with 100 trials of 100 treatments; usable: drawn, and the page answers to input.
The folder's page: time to its first paint. The delay: from the write of an event to its appearance in the page's
document, as the page itself sees it.

--quick: fewer repetitions.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

from common import until
from frame import Options, Outcome, bench
from web_site import SCENARIO, Site, browser, site

RECORDS = 2000
READY = """
const done = arguments[0];
const entry = performance.getEntriesByType('navigation')[0];
requestAnimationFrame(() => setTimeout(() => {
  const ready = performance.now();
  const wait = () => {
    const paint = performance.getEntriesByType('paint').find(each => each.name === 'first-contentful-paint');
    if (paint) done([paint.startTime, entry.loadEventEnd, ready, entry.responseEnd]); else setTimeout(wait, 50);
  };
  wait();
}, 0));
"""
# Set by a page script's own timer, as recorded documents are: the page's policy stays in force.
WATCH = """
window.seen = {};
new MutationObserver(() => {
  const found = /event-(\\d+)-end/.exec(document.getElementById('status').textContent);
  if (found && !(found[1] in window.seen)) window.seen[found[1]] = Date.now();
}).observe(document.getElementById('status'), {childList: true, subtree: true, characterData: true});
"""


def records(where: Site) -> None:
    for number in range(RECORDS):
        path = where.root / f"load-{number:05}"
        path.mkdir()
        (path / "load.json").write_text("{}")
        (path / "findings.json").write_text(json.dumps({"headline": f"{number} responses/s, half within 2 ms"}))
        (path / "journal.jsonl").write_text('{"at":1,"event":"ended","exit":0}\n')


def live_record(where: Site) -> Path:
    """A record whose journal this process writes."""
    path = where.root / "load-live"
    path.mkdir()
    (path / "load.json").write_text("{}")
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    pid = int(Path("/proc/self").resolve().name)
    (path / "journal.jsonl").write_text(
        json.dumps({"at": time.time(), "event": "started", "pid": pid, "start_ticks": ticks}) + "\n"
    )
    return path


def big_run(where: Site) -> None:
    """A run in progress with 100 trials of 100 treatments."""
    path = where.root / "big"
    source = next(where.root.glob("*/plan.json"))
    plan = json.loads(source.read_text())
    trial = plan["trials"][0]
    treatment = next(listed for listed in trial["treatments"] if listed["role"] != "baseline")
    treatments = [listed for listed in trial["treatments"] if listed["role"] == "baseline"]
    treatments += [treatment | {"id": f"t{n}", "label": f"t{n}"} for n in range(100)]
    plan["trials"] = [trial | {"id": f"{n:03}-v{n}", "treatments": treatments} for n in range(100)]
    path.mkdir()
    (path / "plan.json").write_text(json.dumps(plan))
    cells = {f"t{n}": [0.9 + n / 1000, 0.89, 0.999] for n in range(100)}
    lines = [
        {"at": 1, "event": "block", "trial": f"{n:03}-v{n}", "done": 30, "precision": "", "cells": cells}
        for n in range(100)
    ]
    (path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@bench(plants={"slow": "each update half a second late"})
def main(given: Options) -> Outcome:
    times = 5 if given.quick else 20
    with site() as where:
        where.login()
        document = SCENARIO.format(budget="2s")
        where.api("POST", "/api/jobs", {"kind": "run", "document": document}, "job-00001")
        until(lambda: where.jobs() and where.jobs()[0]["state"] == "ended", 120)
        big_run(where)
        records(where)
        live = live_record(where)
        with browser() as driver:
            driver.set_script_timeout(120)
            where.let_in(driver)
            paints, usable = [], []
            for _ in range(times):
                driver.get(f"{where.origin}/")
                paints.append(driver.execute_async_script(READY)[0])
            for _ in range(times):
                driver.get(f"{where.origin}/records/big")
                cells = driver.execute_script("return document.querySelectorAll('.live td').length")
                assert cells == 10_000, cells
                _, _, ready, answered = driver.execute_async_script(READY)
                usable.append(ready - answered)
            driver.get(f"{where.origin}/records/load-live")
            driver.execute_script(WATCH)
            time.sleep(1.5)
            sent = {}
            for number in range(10 * times):
                sent[str(number)] = time.time() * 1000 - (500 if given.plant else 0)
                with (live / "journal.jsonl").open("a") as stream:
                    stream.write(
                        json.dumps({"at": time.time(), "event": "doing", "text": f"event-{number}-end"}) + "\n"
                    )
                time.sleep(0.3)
            seen = driver.execute_script("return window.seen")
        delays = sorted(seen[number] - at for number, at in sent.items() if number in seen)
    paint, matrix = statistics.median(paints), statistics.median(usable)
    late = delays[int(0.95 * (len(delays) - 1))] if len(delays) >= 0.9 * len(sent) else float("inf")
    print(f"first paints: {[round(each) for each in paints]} ms; matrices: {[round(each) for each in usable]} ms")
    updates = f"updates p95 {late:.0f} ms ({len(delays)} of {len(sent)} seen)"
    figure = f"folder painted in {paint:.0f} ms, 10,000 cells usable in {matrix:.0f} ms, {updates}"
    return Outcome(figure, paint <= 500 and matrix <= 300 and late <= 200)


if __name__ == "__main__":
    main()
