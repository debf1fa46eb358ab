"""Test files of one name in two folders run together, and import what they share."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.long
def test_files_of_one_name_in_two_folders_run_together(tmp_path):
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").write_bytes((ROOT / "tests" / "__init__.py").read_bytes())
    for folder in ("one", "two"):
        place = tmp_path / "tests" / folder
        place.mkdir()
        (place / "values.py").write_text(f"NAME = {folder!r}\n")
        lines = [f"from tests.{folder} import values", f"def test_it():\n    assert values.NAME == {folder!r}\n"]
        (place / "test_same.py").write_text("\n".join(lines))
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout
