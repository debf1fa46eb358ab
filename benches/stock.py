"""What benchmarks on stock hosts share: the lab, started as `make hosts` starts it, and what it wrote down."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CLONE = Path(__file__).parents[1]


def lab(*arguments: str) -> tuple[dict[str, Any], bool]:
    """Runs the lab; what came of it by host and check, and whether all was as the catalogue expects."""
    # A wheel from before the last change would be another version's.
    build = [str(Path(sys.executable).parent / "hatchling"), "build", "-t", "wheel", "-d", "dist"]
    subprocess.run(build, cwd=CLONE, check=True, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "labs.hosts.lab", "--out", folder, *arguments]
        code = subprocess.run(command, cwd=CLONE, check=False).returncode
        results = Path(folder) / "results.json"
        hosts = json.loads(results.read_text())["hosts"] if results.exists() else {}
        return hosts, code == 0


def on_host(host: str, *checks: str) -> dict[str, dict[str, Any]]:
    """What came of some checks on one host; checks that were not reached failed."""
    asked = [word for check in checks for word in ("--check", check)]
    results = lab("--host", host, *asked)[0].get(host, {})
    if "kernel" in results:
        return dict.fromkeys(checks, results["kernel"])
    return {check: results.get(check, {"status": "failed", "text": "was not reached"}) for check in checks}
