"""docs/gallery.md: examples with the question that each answers, the report's picture, and what it taught.

docs/gallery/examples.yaml says what is asked and run, and what was learned. `python -m labs.gallery NAME…` runs
examples on this host (all without a name), as root, and keeps the headline and the picture of each. `--page` only
writes the page.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from partywall.values import Frozen, Name

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs/gallery"
EXAMPLES, PAGE = FOLDER / "examples.yaml", ROOT / "docs/gallery.md"
LONGEST_S = 600
FOUND = (0, 1, 3)
"""Exit codes of a command that has findings."""
HEAD = """\
# Gallery

Short examples, each with the question that it answers, what was found when it ran last, and what it taught. Copy a file
and change it.

Run them in the top folder of a clone. `sudo` does not find a Partywall of pipx, uv or `.venv`: write
`sudo env "PATH=$PATH"` in its place, and `sudo -v` before lines that end in `&`. Containers need crun or runc,
`two-tenants.sh` needs iperf3, and `migrate` needs QEMU. What runs in the background ends by itself after some minutes,
or with `kill %1`.

The figures are of one machine with two CPUs that it shares with others, and of runs as root. Yours will be other ones.
""".strip()


class Example(Frozen):
    """One example. part: of the page. run: what a user types; the last line is the command with a record.

    chart: a pattern for the chart that is shown. taught: what a reader takes along, without figures of that run.
    """

    name: Name
    part: str
    asks: str
    run: str
    chart: str
    taught: str

    @property
    def files(self) -> tuple[str, ...]:
        """The examples' files that it uses."""
        return tuple(dict.fromkeys(word for word in shlex.split(self.run) if word.startswith("docs/examples/")))


class Ran(Frozen):
    """What an example gave when it ran last. headline: the report's own."""

    headline: str
    when: str
    host: str
    seconds: float
    picture: str


def examples(file: Path = EXAMPLES) -> tuple[Example, ...]:
    content = YAML(typ="safe").load(file.read_text(encoding="utf-8"))
    return tuple(Example.model_validate({"name": name, **each}) for name, each in content.items())


def ran(name: str, folder: Path = FOLDER) -> Ran | None:
    """What an example gave; None if it never ran."""
    file = folder / f"{name}.json"
    return Ran.model_validate_json(file.read_bytes()) if file.exists() else None


def page(every: Sequence[Example], found: Mapping[str, Ran]) -> str:
    """docs/gallery.md. Pure."""
    parts = [HEAD]
    for part, own in groupby(every, key=lambda example: example.part):
        parts.append(f"## {part}")
        for example in own:
            parts += _shown(example, found.get(example.name))
    return "\n\n".join(parts) + "\n"


def _shown(example: Example, last: Ran | None) -> Iterator[str]:
    yield f"### {example.asks}"
    yield f"```shell\n{example.run.strip()}\n```"
    files = ", ".join(f"[{Path(file).name}]({file.removeprefix('docs/')})" for file in example.files)
    if files:
        yield f"Files: {files}"
    if last:
        yield f"> {last.headline}"
        yield f"![{example.asks}](gallery/{last.picture})"
    yield example.taught.strip()
    if last:
        yield f"*Ran on {last.when} in {last.seconds:.0f} s, on {last.host}.*"


def run(example: Example, folder: Path) -> Ran:
    """Runs an example on this host, and keeps its picture. RuntimeError if it has no findings."""
    record = folder / example.name
    *before, last = example.run.strip().split("\n")
    # Those that follow a script's name belong to it.
    command = f"{last.removeprefix('sudo ')} --out {shlex.quote(str(record))}"
    script = "\n".join([*(line.removeprefix("sudo ") for line in before), command])
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    began = time.monotonic()
    process = subprocess.Popen(
        ["bash", "-c", script], cwd=ROOT, env=os.environ | {"PATH": path}, start_new_session=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        code = process.wait(LONGEST_S)
    finally:
        # What was started beside it ends with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    seconds = time.monotonic() - began
    if code not in FOUND:
        raise RuntimeError(f"{example.name}: exit code {code}")
    partywall = [sys.executable, "-m", "partywall", "report", str(record)]
    said = subprocess.run([*partywall, "-f", "json", "-f", "svg"], capture_output=True, text=True, check=False)
    if said.returncode not in FOUND:
        raise RuntimeError(f"{example.name}: {said.stdout}{said.stderr}")
    document: dict[str, Any] = json.loads(said.stdout)["result"]
    drawn = sorted((record / "charts").glob(f"{example.chart}.svg"))
    if not drawn:
        there = ", ".join(sorted(file.stem for file in (record / "charts").glob("*"))) or "none"
        raise RuntimeError(f"{example.name}: no chart {example.chart}; there are {there}")
    picture = f"{example.name}.svg"
    shutil.copyfile(drawn[0], FOLDER / picture)
    found = Ran(
        headline=document["headline"],
        when=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        host=f"a shared virtual machine with {os.cpu_count()} CPUs",
        seconds=round(seconds, 1),
        picture=picture,
    )
    (FOLDER / f"{example.name}.json").write_text(found.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args(arguments)
    every = examples()
    if unknown := set(options.names) - {example.name for example in every}:
        parser.error(f"there is no example {', '.join(sorted(unknown))}")
    failed = []
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        for example in [] if options.page else every:
            if not options.names or example.name in options.names:
                try:
                    print(f"{example.name}: {run(example, Path(folder)).headline}", flush=True)
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    failed.append(str(error))
                    print(error, flush=True)
    found = {example.name: last for example in every if (last := ran(example.name))}
    PAGE.write_text(page(every, found), encoding="utf-8")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
