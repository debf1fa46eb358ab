"""JSON Schema of the scenario format for editors, from the model, with the kernels' names and parameters.

It helps editors. `partywall.run.check` checks more, such as goals that match nothing and budgets that are too small.
"""

from __future__ import annotations

from typing import Any, ClassVar

from partywall.agent.catalogue import Catalogue, Role, shipped
from partywall.core.document.schema import BYTES, DURATION, WRITTEN, AsWritten, schema_of
from partywall.load.document import url_or_plan
from partywall.run.document.scenario import Scenario
from partywall.sandbox.document import path_or_file
from partywall.values import LISTS


class _AsWritten(AsWritten):
    plain: ClassVar = {
        url_or_plan: {"type": "string", "description": "a URL, or a load plan"},
        path_or_file: {"type": "string", "description": "a path, relative to the scenario"},
    }


def json_schema(catalogue: Catalogue | None = None) -> dict[str, Any]:
    """The schema as a value. `schema/scenario.schema.json` is a checked-in copy."""
    kernels = catalogue or shipped()
    schema = schema_of(Scenario, "Partywall scenario", _AsWritten)
    _add_kernels(schema["$defs"]["Victim"], "probe", kernels)
    _add_lists_as_levels(schema["properties"]["factors"])
    _add_kernels(schema["$defs"]["Aggressor"], "stressor", kernels)
    return schema


def _add_kernels(workload: dict[str, Any], role: Role, catalogue: Catalogue) -> None:
    """Adds kernel names as an enum, and each kernel's parameters."""
    names = [name for name in catalogue.names(role) if name != "null"]
    said = {name: info.summary for name in names if (info := catalogue.kernel(name))}
    workload["properties"][role] = {
        "enum": names,
        "markdownDescription": "\n".join(f"* `{name}`: {summary}" for name, summary in said.items()),
        "description": "kernel, or use command or load",
    }
    sources = (role, "command", "load", *(("migration",) if role == "stressor" else ()))
    workload["oneOf"] = [{"required": [source]} for source in sources]
    workload["allOf"] = [_when(role, name, catalogue) for name in names]


def _add_lists_as_levels(factors: dict[str, Any]) -> None:
    """Allows lists as levels of CPUs and NUMA nodes."""
    levels: dict[str, Any] = dict(factors["additionalProperties"])
    factors["patternProperties"] = {
        f"{ending}$": levels | {"items": {"anyOf": [levels["items"], WRITTEN[as_text]]}}
        for ending, as_text in LISTS.items()
    }


def _when(role: Role, name: str, catalogue: Catalogue) -> dict[str, Any]:
    info = catalogue.kernel(name)
    params = _params(info.params) if info else {}
    condition = {"properties": {role: {"const": name}}, "required": [role]}
    return {"if": condition, "then": {"properties": {"params": params}}}


def _params(schema: dict[str, Any]) -> dict[str, Any]:
    """A kernel's own schema without references. Sizes and durations may be text if the name ends in their unit."""
    plain = _inline(
        {key: value for key, value in schema.items() if key not in ("$schema", "$defs", "title")},
        schema.get("$defs", {}),
    )
    for key, value in plain.get("properties", {}).items():
        written = {"bytes": BYTES, "ns": DURATION}.get(key.rpartition("_")[2])
        if written:
            plain["properties"][key] = {"anyOf": [value, written]} | {
                k: value[k] for k in ("description", "default") if k in value
            }
    return dict(plain)


def _inline(value: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_inline(item, definitions) for item in value]
    if not isinstance(value, dict):
        return value
    reference = str(value.get("$ref", "")).removeprefix("#/$defs/")
    here = {key: _inline(item, definitions) for key, item in value.items() if key != "$ref"}
    return {**_inline(definitions[reference], definitions), **here} if reference in definitions else here
