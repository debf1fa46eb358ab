"""The bill of materials (CycloneDX 1.6): the Python packages that the deb and the rpm bring, and the agent's crates."""

from __future__ import annotations

import json
import re
import time
import tomllib
import uuid
from typing import Any

from labs.release.target import CLONE, Release

PINNED = re.compile(r"^([a-z0-9-]+)==([^\s;\\]+)(?: ; ([^\\]+?))?(?: \\|$)", re.MULTILINE)
"""A line of packaging/requirements.txt: name, version and for which hosts."""


def write(release: Release) -> None:
    text = json.dumps(bill(release), indent=1, ensure_ascii=False)
    (release.dist / f"partywall-{release.version}.cdx.json").write_text(text + "\n", "utf-8")


def bill(release: Release) -> dict[str, Any]:
    """The document. Its identifier comes from its content, so that the same release has the same."""
    lock = (CLONE / "agent/Cargo.lock").read_text()
    components = [*python_packages((CLONE / "packaging/requirements.txt").read_text()), *crates(lock)]
    content = json.dumps(components, sort_keys=True)
    own = {"type": "application", "name": "partywall", "version": release.version}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'partywall {release.version} {content}')}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(release.epoch_s)),
            "component": own | {"bom-ref": "partywall", "licenses": [{"license": {"id": "Apache-2.0"}}]},
        },
        "components": components,
    }


def python_packages(locked: str) -> list[dict[str, Any]]:
    """Components of a file of pinned requirements, without those for other operating systems."""
    found = [(name, version) for name, version, where in PINNED.findall(locked) if "win32" not in where]
    return [_component(f"pkg:pypi/{name}@{version}", name, version) for name, version in found]


def crates(lock: str) -> list[dict[str, Any]]:
    """Components of a Cargo.lock with their checksums, without the crates of the workspace itself."""
    packages = [each for each in tomllib.loads(lock)["package"] if "source" in each]
    return [
        _component(f"pkg:cargo/{each['name']}@{each['version']}", each["name"], each["version"])
        | {"hashes": [{"alg": "SHA-256", "content": each["checksum"]}]}
        for each in packages
    ]


def _component(purl: str, name: str, version: str) -> dict[str, Any]:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
