"""Requests to a running execution."""

import json

import pytest

from partywall.core.control import FILE, Control, send
from partywall.errors import UsageError


def test_requests_are_taken_once_and_in_order(tmp_path):
    control = Control(tmp_path)
    assert control.take() == []
    send(tmp_path, level=200)
    send(tmp_path, level=50)
    assert control.take() == [{"level": 200}, {"level": 50}]
    assert control.take() == []
    send(tmp_path, level=1)
    assert control.take() == [{"level": 1}]


@pytest.mark.parametrize("line", [b"[1, 2]", b"nonsense", b"\xff\xfe", b"", b"17", b"[" * 100_000])
def test_lines_that_are_no_requests_are_ignored(tmp_path, line):
    (tmp_path / FILE).write_bytes(line + b"\n" + json.dumps({"level": 3}).encode() + b"\n")
    assert Control(tmp_path).take() == [{"level": 3}]


def test_an_incomplete_request_is_taken_when_it_is_whole(tmp_path):
    file = tmp_path / FILE
    file.write_bytes(b'{"level": ')
    control = Control(tmp_path)
    assert control.take() == []
    file.write_bytes(b'{"level": 4}\n')
    assert control.take() == [{"level": 4}]


def test_a_record_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(UsageError, match=FILE):
        send(tmp_path / "missing", level=1)
