"""Records after a power failure: each is there, can be read and continued, or says what is lost.

A program writes a record of every kind to a file system on a disk of ours (`cut_disk.py`), which remembers the order of
writes and flushes. Another program flushes files of its own meanwhile, as a database does, so that the file system
commits at moments that nobody chose. Then the power fails at a random moment of each record: the disk keeps what was
flushed before, and any part of what was written later. The kernel mounts what is left and recovers its journal, and
every record is opened.

* A record whose creation had returned is there, and its report can be made. So are tables, once they had been made.
* An observation of a study, a move of a migration and a step of a consolidation are there, once they had been written.
* A record that was being created is there, or is refused with its name as no record. Nothing says that it is damaged.
* A run that was being measured is resumed with `partywall run --resume`, to its end.

The file systems are the kernel's own, ext4 and xfs, here and not in a guest. Only the disk is emulated: memory is lost
because only what reached the disk is mounted. Metadata of ext4 is committed after a second instead of five.

--quick: 10 on each.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import PARTYWALL, spoilt_python
from cut_disk import Disk, mounted
from frame import NotMeasured, Options, Outcome, bench
from tests.cli.corpus import TINY

SIZE = 320 << 20
"""The smallest disk that mkfs.xfs takes is 300 MiB."""
SYSTEMS = {"ext4": (("mkfs.ext4", "-q", "-F"), ("commit=1",)), "xfs": (("mkfs.xfs", "-q", "-f"), ())}
LINES = 40
PLANTS = {"no fsync": "files are renamed into place and never flushed"}
UNFLUSHED = "import partywall.files\npartywall.files._sync = lambda path: None\n"
NEW_MOUNTS = 0x00020000


# The program that writes


def say(word: str, kind: str, **more: Any) -> None:
    print(json.dumps({"word": word, "kind": kind, **more}), flush=True)


def write(folder: Path) -> None:
    """Writes a record of each kind, and says what had been promised by when."""
    from tests.test_kinds import MAKERS  # noqa: PLC0415 - only the writer needs all stores

    over = threading.Event()
    neighbour = threading.Thread(target=flush_often, args=(folder / "neighbour", over))
    neighbour.start()
    try:
        for kind, make in MAKERS.items():
            say("begins", kind)
            if kind == "run":
                measure(folder)
            else:
                record = make(folder / kind)
                files = [file.name for file in record.path.iterdir() if file.is_file() and file.name != record.LINES]
                say("made", kind, files=files)
                extend(kind, record)
            say("ends", kind)
    finally:
        over.set()
        neighbour.join()


def flush_often(file: Path, over: threading.Event) -> None:
    chance = random.Random(1)
    with file.open("wb", buffering=0) as stream:
        while not over.wait(chance.uniform(0, 0.05)):
            stream.write(b"x")
            os.fsync(stream.fileno())


def measure(folder: Path) -> None:
    """A real run. It has been created when its first line is there."""
    scenario = Path(tempfile.gettempdir(), f"power-cut-{os.getpid()}.yaml")
    scenario.write_text(TINY)
    argv = [*PARTYWALL, "run", str(scenario), "--out", str(folder / "run"), "--work-dir", "/var/tmp"]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        while running.poll() is None and not (folder / "run" / "events.jsonl").exists():
            time.sleep(0.005)
        say("made", "run", files=["scenario.yaml", "host.json", "plan.json"])
        _, errors = running.communicate()
    scenario.unlink()
    assert running.returncode in (0, 1, 3), errors
    say("measured", "run")


def extend(kind: str, record: Any) -> None:
    """Lets a record grow, as a measurement does, and settles it. Its lines are those that its maker wrote."""
    lines = (record.path / record.LINES).read_text().splitlines()
    for number in range(LINES):
        if kind == "study":
            record.append(json.dumps({"cell": "a", "value": number}))
            say("kept", kind, lines=number + 2)
        elif kind == "load":
            record.add_note(f"note {number}")
            say("kept", kind, notes=number + 1)
        elif lines:
            record.append_line(lines[0])
        time.sleep(0.005)
    with record.exclusive():
        pass
    record.settle()
    say("settled", kind, files=sorted(str(file.relative_to(record.path)) for file in record.path.rglob("*.parquet")))


# What is left


@dataclass(frozen=True)
class Promise:
    """What the writer had said, and how many entries the disk's log had when that was heard."""

    at: int
    word: str
    kind: str
    more: dict[str, Any]


def check(folder: Path, promises: list[dict[str, Any]]) -> list[str]:
    """What is wrong with the records in a folder, which all promises are about."""
    from partywall import kinds  # noqa: PLC0415 - only the checker needs all kinds
    from partywall.errors import UsageError  # noqa: PLC0415

    wrong = []
    for kind in dict.fromkeys(each["kind"] for each in promises):
        mine = {each["word"]: each for each in promises if each["kind"] == kind}
        try:
            record = kinds.opened(folder / kind)
        except UsageError as error:
            if "made" in mine or f"{folder / kind} is not a record" not in str(error):
                wrong.append(f"{kind}: {error}")
            continue
        try:
            wrong += [f"{kind}: {text}" for text in of_record(record, mine)]
        except Exception as error:  # noqa: BLE001 - whatever ends it is wrong
            wrong.append(f"{kind}: {type(error).__name__}: {error}")
    return wrong


def of_record(record: Any, mine: dict[str, dict[str, Any]]) -> Iterator[str]:
    """What is wrong with a record that could be opened. mine: the last promise of each sort about it."""
    from partywall import kinds  # noqa: PLC0415
    from partywall.errors import TrialError  # noqa: PLC0415
    from tests.test_kinds import BEGUN  # noqa: PLC0415

    yield from (f"{name} is empty" for name in mine.get("made", {}).get("files", ()) if not content(record, name))
    record.settle()
    lines = len(record.whole_lines())
    if record.KIND not in BEGUN or "measured" in mine:
        # There may be no findings yet, which it says.
        with contextlib.suppress(TrialError):
            kinds.of(record).findings(record)
    if (kept := mine.get("kept", {}).get("lines", 0)) > lines:
        yield f"{kept - lines} of {kept} lines are lost"
    if (kept := mine.get("kept", {}).get("notes", 0)) > (notes := len(record.about()["notes"]) if kept else 0):
        yield f"{kept - notes} of {kept} notes are lost"
    yield from (
        f"{name} is no table" for name in mine.get("settled", {}).get("files", ()) if not is_table(record, name)
    )


def content(record: Any, name: str) -> bytes:
    return bytes((record.path / name).read_bytes())


def is_table(record: Any, name: str) -> bool:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        return pq.read_table(record.path / name) is not None
    except (OSError, pa.ArrowException):
        return False


def resumed(run: Path) -> str:
    """What is wrong with a run that is resumed."""
    done = subprocess.run(
        [*PARTYWALL, "run", "--resume", str(run), "--work-dir", "/var/tmp"], capture_output=True, text=True, check=False
    )
    ended = b'"run_ended"' in (run / "events.jsonl").read_bytes()
    said = " ".join((done.stderr or done.stdout).split())
    return "" if done.returncode in (0, 1, 3) and ended else f"run: resumed with {done.returncode}: {said[-300:]}"


# Power failures


def heard(disk: Disk, folder: Path) -> list[Promise]:
    """Runs the program that writes on a mounted disk, to its end."""
    argv = [sys.executable, __file__, "--write", str(folder)]
    promises = []
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout
        for line in writer.stdout:
            content = json.loads(line)
            promises.append(Promise(len(disk.log), content.pop("word"), content.pop("kind"), content))
    assert writer.returncode == 0, "the program that writes failed"
    return promises


def moments(promises: list[Promise], count: int, chance: random.Random) -> Iterator[tuple[str, int]]:
    """As many moments, of all kinds in turn: while a record was being written."""
    begins, ends = ({p.kind: p.at for p in promises if p.word == word} for word in ("begins", "ends"))
    for number in range(count):
        kind = list(begins)[number % len(begins)]
        yield kind, chance.randint(begins[kind], ends[kind])


def cut(
    disk: Disk, system: str, promises: list[Promise], moment: int, chance: random.Random, folder: Path
) -> list[str]:
    """Fails the power at a moment, mounts what is left, and says what is wrong with it."""
    lost = disk.after_cut(folder / "image", moment, chance)
    before = [{"word": p.word, "kind": p.kind, **p.more} for p in promises if p.at <= moment]
    with mounted(folder / "image", folder / "after", *SYSTEMS[system][1]) as after:
        done = subprocess.run(
            [sys.executable, __file__, "--check", str(after)],
            input=json.dumps(before), capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            return [f"the program that checks failed: {done.stderr[-500:]}"]
        wrong: list[str] = json.loads(done.stdout)
        words = {each["word"] for each in before if each["kind"] == "run"}
        if "made" in words and "ends" not in words:
            wrong += [problem] if (problem := resumed(after / "run")) else []
    print(f"  {lost} writes lost: {'; '.join(wrong) or 'all as promised'}", flush=True)
    return wrong


def on(system: str, cuts: int, chance: random.Random, folder: Path, plant: str | None) -> list[str]:
    """What is wrong after so many power failures on a file system."""
    disk, wrong = Disk(SIZE), []
    with disk.served(folder / "disk") as file:
        subprocess.run([*SYSTEMS[system][0], str(file)], check=True)
        with mounted(file, folder / "before", *SYSTEMS[system][1]) as before:
            os.sync()
            disk.begin()
            with spoilt_python(UNFLUSHED) if plant else contextlib.nullcontext():
                promises = heard(disk, before)
    for kind, moment in moments(promises, cuts, chance):
        print(f"{system}: power fails at {moment} of {len(disk.log)}, in {kind}")
        wrong += cut(disk, system, promises, moment, chance, folder)
    return wrong


def own_mounts() -> None:
    """From here on, mounts of this process are its own, and end with it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_MOUNTS):
        raise NotMeasured(f"a mount namespace: {os.strerror(ctypes.get_errno())}")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def main() -> None:
    match sys.argv[1:]:
        case ["--write", folder]:
            write(Path(folder))
        case ["--check", folder]:
            print(json.dumps(check(Path(folder), json.load(sys.stdin))))
        case _:
            fail()


@bench(parts=list(SYSTEMS), plants=PLANTS, needs=("mount", "mkfs.ext4", "mkfs.xfs"))
def fail(options: Options) -> Outcome:
    """Fails the power as often as the form says, and judges what is left."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        raise NotMeasured("it needs root and /dev/fuse")
    own_mounts()
    chance = random.Random(7 if options.quick else time.time_ns())
    cuts, wrong, systems = 10 if options.quick else 30, [], options.only or list(SYSTEMS)
    for system in systems:
        with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="power-cut-") as name:
            folder = Path(name)
            (folder / "disk").mkdir()
            wrong += on(system, cuts, chance, folder, options.plant)
    figure = f"{cuts} power failures on {' and on '.join(systems)}, {len(wrong)} records not as promised"
    return Outcome(figure, not wrong)


if __name__ == "__main__":
    main()
