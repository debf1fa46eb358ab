"""Files that decide something later are whole or absent, after a kill and after a power failure."""

import ast
import os
from pathlib import Path

import pytest

from partywall import files
from partywall.core.report.page import written
from partywall.errors import UsageError
from partywall.files import decoded
from partywall.study.record import StudyDirectory
from partywall.watch.job import WatchJob
from partywall.watch.record import WatchRecord
from tests.run.record.test_directory import SLICE, run  # noqa: F401 - a fixture
from tests.test_kinds import migration, study

SOURCES = Path(files.__file__).parent
KERNEL = "a file of the kernel's"
FOLDER = "in a folder that is renamed when it is whole"
OWN = "only this process and what it starts afterwards read it"
LOCK = "an empty file that is locked"
IN_PIECES = {
    "blame/measure/files.py": KERNEL,
    "files.py": "what writes whole files",
    "consolidate/measure/practice.py": LOCK,
    "fleet/ledger/keeper.py": "a program's output; its end is stored beside it",
    "host/settings/idle.py": "a device",
    "host/settings/watchdog.py": KERNEL,
    "migrate/measure/pings.py": "read after its program has ended; a damaged one is an error",
    "sandbox/libvirt/leftovers.py": LOCK,
    "sandbox/own_files.py": "copies for a trial, which are checked",
    "sandbox/qemu/disk.py": "an image for one sandbox",
    "sandbox/qemu/relay.py": "a socket",
    "web/publish.py": "a file beside it that is renamed when it is whole, and an archive that goes with its answer",
    "web/security.py": "a file beside it that is linked when it is whole",
    "watch/stalls/ring.py": "it empties a file; whole lines follow",
    "sandbox/cgroups.py": KERNEL,
    "sandbox/delegation.py": KERNEL,
    "sandbox/qemu/vcpus.py": KERNEL,
    "host/settings/ledger.py": KERNEL,
    "sandbox/qemu/root.py": FOLDER,
    "sandbox/qemu/kernel.py": FOLDER,
    "sandbox/container.py": OWN,
    "load/tomcat.py": OWN,
    "web/documents.py": OWN,
}
"""Code that writes files piece by piece, and why nobody sees half of one."""


def opens_to_write(call: ast.Call) -> bool:
    """True for a call of `open` or `fdopen` that creates, empties or overwrites a file, and does not append."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    values = [*call.args, *(word.value for word in call.keywords if word.arg == "mode")]
    texts = [each.value for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    modes = [text for text in texts if text and set(text) <= set("rwxabt+")]
    return name in ("open", "fdopen") and any(set(mode) & set("wx+") and "a" not in mode for mode in modes)


def writes(source: Path) -> bool:
    calls = [node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.Call)]
    whole = ("write_text", "write_bytes")
    return any(
        opens_to_write(call) or (isinstance(call.func, ast.Attribute) and call.func.attr in whole) for call in calls
    )


def test_no_other_code_writes_a_file_in_pieces():
    files = {str(source.relative_to(SOURCES)): source for source in SOURCES.rglob("*.py")}
    assert {name for name, source in files.items() if not name.startswith("testing/") and writes(source)} == (
        IN_PIECES.keys()
    )


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("path.open('wb')", True),
        ("open(path, mode='x')", True),
        ("os.fdopen(number, 'r+b')", True),
        ("archive.open('names', 'w')", True),
        ("path.open('ab')", False),
        ("path.open()", False),
        ("path.open(encoding='utf-8')", False),
    ],
)
def test_an_opening_for_writing_is_seen(code, found):
    assert opens_to_write(ast.parse(code, mode="eval").body) is found


@pytest.fixture
def steps(monkeypatch):
    """What reaches the disk, in order: the names that are synced and renamed."""
    seen = []
    sync, rename = os.fsync, Path.replace

    def synced(descriptor):
        seen.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink().name))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", lambda path, to: seen.append(("rename", to.name)) or rename(path, to))
    return seen


def test_the_file_that_identifies_a_record_is_on_the_disk_last(steps, tmp_path):
    WatchRecord.create(tmp_path / "w", WatchJob(), {"cpu": {}})
    names = [name.split(".")[1] if name.startswith(".") else name for _, name in steps]
    assert names == ["host", "host.json", "w", "watch", "watch.json", "w"]
    assert [what for what, _ in steps] == ["sync", "rename", "sync"] * 2


def test_lines_that_are_promised_to_survive_are_on_the_disk_at_once(steps, tmp_path):
    made = study(tmp_path / "s"), migration(tmp_path / "m")
    made[0].append("{}")
    moved = made[1].evidence().moves[0]
    steps.clear()
    made[0].append("{}")
    made[1].append(moved, {})
    assert steps == [("sync", each.LINES) for each in made]


def test_a_folder_is_on_the_disk_before_it_has_its_name(steps, tmp_path):
    fresh = tmp_path / "made"
    (fresh / "modules").mkdir(parents=True)
    (fresh / "modules" / "one.ko").write_bytes(b"x")
    files.replace_folder_durably(fresh, tmp_path / "kernel")
    assert {name for _, name in steps[:-1]} == {"modules", "one.ko", "made"}
    assert steps[-1] == ("sync", tmp_path.name)
    assert (tmp_path / "kernel" / "modules" / "one.ko").read_bytes() == b"x"


def test_a_device_is_written_to_and_never_replaced():
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as said, os.fdopen(writer, "wb"):
        files.write_whole(Path(f"/proc/self/fd/{writer}"), "plan")
        assert said.read1() == b"plan"


def test_tables_are_on_the_disk_before_the_lines_that_they_replace_are_removed(run, steps):  # noqa: F811
    pending = run.pending("t", "0")
    pending.write({"workload": "v", "slices": [SLICE]})
    pending.close()
    steps.clear()
    run.compact()
    assert steps == [("sync", "t~0.tmp"), ("rename", "t~0.parquet"), ("sync", "slices")]
    assert not list((run.path / "pending").iterdir())


@pytest.mark.parametrize("stops_at", ["write", "rename"])
def test_a_record_that_was_being_created_when_its_process_was_killed_is_none(tmp_path, monkeypatch, stops_at):
    """A half plan made a whole study impossible to continue."""

    def killed(path, to):
        if to.name == StudyDirectory.MARK:
            raise KeyboardInterrupt
        return rename(path, to)

    rename = Path.replace
    if stops_at == "rename":
        monkeypatch.setattr(Path, "replace", killed)
    else:
        write = Path.write_bytes

        def half(path, content):
            write(path, content[: len(content) // 2])
            if StudyDirectory.MARK in path.name:
                raise KeyboardInterrupt
            return write(path, content)

        monkeypatch.setattr(Path, "write_bytes", half)
    request = type("Request", (), {"model_dump": lambda self: {}})()
    with pytest.raises(KeyboardInterrupt):
        StudyDirectory.create(tmp_path / "s", b"x", request, {})
    assert not StudyDirectory.is_one(tmp_path / "s")
    with pytest.raises(UsageError, match=r"no study\.json"):
        StudyDirectory.open(tmp_path / "s")


def test_a_page_that_is_written_again_is_never_half(tmp_path, monkeypatch):
    written(tmp_path / "report.html", b"old")
    write = Path.write_bytes

    def half(path, content):
        write(path, content[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(OSError, match="No space"):
        written(tmp_path / "report.html", b"new page")
    assert (tmp_path / "report.html").read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_space_that_was_reserved_for_a_line_is_no_damage():
    assert decoded(b"\0" * 40) is None
    assert decoded(b'{"kind": "o\0\0\0') is None
    assert decoded(b'{"kind": "one"}') == {"kind": "one"}
