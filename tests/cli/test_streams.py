"""Standard streams that whoever started the program has closed, and files that other users read."""

import subprocess
import sys

import pytest

from partywall.errors import Exit

KERNELS = f"{sys.executable} -m partywall kernels"


def said(command):
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_a_closed_standard_output_is_one_clear_message():
    code, _, errors = said(f"{KERNELS} >&-")
    assert code == Exit.USAGE
    assert errors == "partywall: standard output is closed — redirect it to a file or to /dev/null\n"


@pytest.mark.parametrize("closed", ["2>&-", "<&-", "<&- 2>&-"])
def test_other_closed_streams_change_nothing(closed):
    code, output, errors = said(f"{KERNELS} {closed}")
    assert (code, errors) == (0, "")
    assert "memory-copy" in output


def test_a_mistake_with_all_streams_closed_still_has_its_exit_code():
    assert said(f"{KERNELS} no-such-kernel <&- >&- 2>&-")[0] == Exit.USAGE


@pytest.mark.parametrize("umask", [0o077, 0o000])
def test_a_file_of_metrics_can_be_read_by_others_and_written_by_its_owner_under_any_umask(tmp_path, umask):
    script = (
        f"import os, pathlib; os.umask({umask}); from partywall.cli.arguments import write_metrics;"
        f"write_metrics(pathlib.Path({str(tmp_path / 'x.prom')!r}), 'a 1\\n')"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert (tmp_path / "x.prom").stat().st_mode & 0o777 == 0o644
