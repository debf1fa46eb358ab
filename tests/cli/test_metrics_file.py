"""Files of metrics, which other users read."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("umask", [0o077, 0o000])
def test_a_file_of_metrics_can_be_read_by_others_and_written_by_its_owner_under_any_umask(tmp_path, umask):
    script = (
        f"import os, pathlib; os.umask({umask}); from partywall.cli.arguments import write_metrics;"
        f"write_metrics(pathlib.Path({str(tmp_path / 'x.prom')!r}), 'a 1\\n')"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert (tmp_path / "x.prom").stat().st_mode & 0o777 == 0o644
