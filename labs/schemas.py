"""Writes the schemas of formats for editors into schema/: `make generate`."""

from __future__ import annotations

import json
from typing import Any

from labs.release.target import CLONE
from partywall.consolidate.document import Cluster
from partywall.core.document.schema import schema_of
from partywall.guard.document import Policy
from partywall.migrate.document import MigrationPlan


def schemas() -> dict[str, dict[str, Any]]:
    """The schemas that no command prints, by the name of the format."""
    return {
        "policy": schema_of(Policy, "Partywall policy of the guard"),
        "migration": schema_of(MigrationPlan, "Partywall migration plan"),
        "cluster": schema_of(Cluster, "Partywall cluster"),
    }


if __name__ == "__main__":
    for name, schema in schemas().items():
        (CLONE / f"schema/{name}.schema.json").write_text(json.dumps(schema, indent=1) + "\n")
