"""QEMU's own messages, which nobody reads while a guest runs."""

import os
from types import SimpleNamespace

from partywall.host.label import Label
from partywall.migrate.measure.guest import Side
from partywall.sandbox import reaper
from partywall.sandbox.qemu.launch import launched

SCRIPT = "yes warning | head -c 300000 >&2; yes note | head -c 300000; echo the last word >&2; exit 3"


def test_a_qemu_that_says_a_lot_does_not_stop_and_its_last_words_are_known(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    label = Label.create("talks", tmp_path / "work")
    with open(os.devnull) as null:  # noqa: PTH123 - a descriptor to inherit
        machine = SimpleNamespace(argv=lambda: ["sh", "-c", SCRIPT], qmp=null.fileno(), stream=null.fileno())
        process = launched(machine, label)
    try:
        assert process.wait(30) == 3
        side = Side.__new__(Side)
        side.process = process
        assert side.ending() == "with 3: the last word"
        assert [file.name for file in label.work.iterdir() if file.name.startswith("messages-")] == []
    finally:
        process.kill()
        process.stderr.close()
        reaper.clean(label)
