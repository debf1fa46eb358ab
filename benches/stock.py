"""What benchmarks on stock hosts share: the lab, started as `make hosts` starts it, and what it wrote down."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

CLONE = Path(__file__).parents[1]


PLANTS = {"agent": "a wheel without the agent"}


def lab(*arguments: str, plant: str | None = None, folder: Path | None = None) -> tuple[dict[str, Any], bool]:
    """Runs the lab; what came of it by host and check, and whether all was as the catalogue expects.

    folder: holds the results, those of earlier runs too; a temporary one if not given.
    """
    # A wheel from before the last change would be another version's.
    build = [str(Path(sys.executable).parent / "hatchling"), "build", "-t", "wheel", "-d", "dist"]
    subprocess.run(build, cwd=CLONE, check=True, stdout=subprocess.DEVNULL)
    if plant:
        for wheel in (CLONE / "dist").glob("*.whl"):
            without_agent(wheel)
    with tempfile.TemporaryDirectory() as passing:
        out = folder or Path(passing)
        command = [sys.executable, "-m", "labs.hosts.lab", "--out", out, *arguments]
        code = subprocess.run(command, cwd=CLONE, check=False).returncode
        results = out / "results.json"
        hosts = json.loads(results.read_text())["hosts"] if results.exists() else {}
        return hosts, code == 0


def without_agent(wheel: Path) -> None:
    """Takes the agent out of a wheel."""
    with zipfile.ZipFile(wheel) as whole:
        kept = {info: whole.read(info) for info in whole.infolist() if not info.filename.endswith("partywall-agent")}
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as rest:
        for info, content in kept.items():
            rest.writestr(info, content)


def on_host(host: str, *checks: str, plant: str | None = None) -> dict[str, dict[str, Any]]:
    """What came of some checks on one host; checks that were not reached failed."""
    words = [word for check in checks for word in ("--check", check)]
    results = lab("--host", host, *words, plant=plant)[0].get(host, {})
    if "kernel" in results:
        return dict.fromkeys(checks, results["kernel"])
    return {check: results.get(check, {"status": "failed", "text": "was not reached"}) for check in checks}
