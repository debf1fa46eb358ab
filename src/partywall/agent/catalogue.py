"""Descriptions of the agent's kernels: resource, unit, roles, settling time, needs, parameters.

Read from `catalogue.json`, the checked-in output of `partywall-agent catalogue`, so that scenarios can be checked
without an agent. Nothing here starts one.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from partywall import units

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

Role = Literal["probe", "stressor"]
ParamMistake = tuple[str, str, str]

TYPES = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "array": "a list",
    "object": "keys with values",
    "null": "nothing",
}


class Warn(StrEnum):
    """A warning beside a figure. `partywall.run.report.advice` has the advice for each."""

    CARRY_OVER = "carry_over"
    COARSE_VICTIM = "coarse_victim"
    FEW_BLOCKS = "few_blocks"
    STEAL = "steal"
    FOREIGN_LOAD = "foreign_load"
    DRIFTING_EFFECT = "drifting_effect"
    NULL_EFFECT = "null_effect"
    NULL_LATENCY = "null_latency"
    THROTTLED = "throttled"
    AGGRESSOR_FELL_SHORT = "aggressor_fell_short"
    CALIBRATION_DISTURBED = "calibration_disturbed"
    AGGRESSOR_IDLE = "aggressor_idle"
    AGGRESSOR_NOT_STOPPED = "aggressor_not_stopped"
    EMULATED = "emulated"
    SWAPPING = "swapping"
    SHARED_DISK_CACHE = "shared_disk_cache"


class Settle(BaseModel):
    """How long a neighbour still feels the state before a switch."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    rise_ns: int
    release_ns: int


class _Fact(BaseModel):
    # Records contain catalogue entries as the agent prints them.
    model_config = ConfigDict(frozen=True, serialize_by_alias=True, defer_build=True)


class Constant(_Fact):
    """A constant value."""

    kind: Literal["constant"]
    value: int


class OfParameter(_Fact):
    """A multiple of another parameter, or of `otherwise` if that is not given."""

    kind: Literal["parameter"]
    parameter: str
    otherwise: int
    times: int


class OfCache(_Fact):
    """A share of the data cache of the level in parameter `level`."""

    kind: Literal["cache"]
    level: str
    otherwise: int
    percent: int


class OfLargestCache(_Fact):
    """A share of the largest data cache. most: the parameter with the upper bound."""

    kind: Literal["largest_cache"]
    percent: int
    least: int
    most: str


class Implied(_Fact):
    """The value of a parameter that is not given."""

    parameter: str
    source: Annotated[Constant | OfParameter | OfCache | OfLargestCache, Field(discriminator="kind", alias="from")]

    @property
    def by_caches(self) -> bool:
        return isinstance(self.source, OfCache | OfLargestCache)


class Held(_Fact):
    """Bytes of memory: a factor times a product of parameters."""

    by: Literal["each_thread", "all_threads"]
    times: int
    parameters: tuple[str, ...]


class WaitsForRequest(_Fact):
    kind: Literal["request"]


class WaitsForReadAhead(_Fact):
    kind: Literal["read_ahead"]
    bytes: int


class WaitsForWriteBack(_Fact):
    """A pause until half of the permitted unwritten data is on the disk. bound: the parameter for that amount."""

    kind: Literal["write_back"]
    bound: str


class DiskRequests(_Fact):
    """A kernel's disk requests. size, depth: parameters. direct: bypasses the page cache."""

    direction: Literal["read", "write"]
    size: str
    depth: str
    waits: Annotated[WaitsForRequest | WaitsForReadAhead | WaitsForWriteBack, Field(discriminator="kind")]
    direct: bool


class Needs(_Fact):
    """A kernel's needs according to its parameters: at least the sum of `memory`, and a disk."""

    implied: tuple[Implied, ...] = ()
    memory: tuple[Held, ...] = ()
    requests: DiskRequests | None = None


class FactWarning(_Fact):
    """A warning if one fact is more than a given share of another."""

    warning: Warn
    fact: str
    of: str
    above_percent: int


class Parameter(BaseModel):
    """One parameter, as text. choices, default: empty if there are none."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    name: str
    text: str
    choices: tuple[str, ...] = ()
    default: str = ""

    @property
    def option(self) -> str:
        """The parameter as an option of `partywall probe` and `partywall stress`."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def help(self) -> str:
        """The full help text, in the style of an option's help."""
        choices = "" if not self.choices or self._choices_in_text else f" One of {', '.join(self.choices)}."
        return f"{self.text}{choices}{f' [default: {self.default}]' if self.default else ''}"

    @property
    def _choices_in_text(self) -> bool:
        return all(choice in self.text for choice in self.choices)


class KernelInfo(BaseModel):
    """A kernel's own description, as the agent prints it.

    also: the same rate as others count it. doing: what a neighbour that runs it is doing, in words. loses: what a
    victim loses, if that is not its resource.
    """

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    name: str
    resource: str
    summary: str
    unit: str
    figure: dict[str, Any]
    also: dict[str, Any] | None = None
    latency: dict[str, Any]
    roles: Literal["probe", "stressor", "both"]
    settle: Settle
    params: dict[str, Any]
    doing: str = ""
    loses: str | None = None
    needs: Needs = Needs()
    warnings: tuple[FactWarning, ...] = ()

    def can_be(self, role: Role) -> bool:
        return self.roles in (role, "both")

    @property
    def param_names(self) -> tuple[str, ...]:
        return tuple(self.params.get("properties", {}))

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters as text, in the order of the schema."""
        return tuple(self._parameter(name, schema) for name, schema in self.params.get("properties", {}).items())

    def _parameter(self, name: str, schema: Mapping[str, Any]) -> Parameter:
        default = schema.get("default")
        return Parameter(
            name=name,
            text=schema.get("description", "").replace("`", ""),
            choices=tuple(dict.fromkeys(map(str, self._choices(schema)))),
            default="" if default is None else _written(name, default),
        )

    def _choices(self, schema: Mapping[str, Any]) -> Iterable[Any]:
        """Values that a schema allows, through references and alternatives."""
        if "$ref" in schema:
            schema = self.params["$defs"][schema["$ref"].rpartition("/")[2]]
        branches = (*schema.get("oneOf", ()), *schema.get("anyOf", ()))
        own = [schema["const"]] if "const" in schema else schema.get("enum", ())
        return [*own, *(choice for branch in branches for choice in self._choices(branch))]


class Catalogue:
    """All kernels of an agent, by name."""

    def __init__(self, kernels: Iterable[Mapping[str, Any]]) -> None:
        self._kernels = {info.name: info for info in map(KernelInfo.model_validate, kernels)}

    @classmethod
    def from_json(cls, text: str) -> Catalogue:
        """Parses the output of `partywall-agent catalogue`, a JSON list of kernels."""
        return cls(json.loads(text))

    def kernel(self, name: str) -> KernelInfo | None:
        return self._kernels.get(name)

    def names(self, role: Role | None = None) -> tuple[str, ...]:
        """Names of all kernels, or of the kernels that can be used as `role`, in the agent's order."""
        return tuple(name for name, info in self._kernels.items() if role is None or info.can_be(role))

    def check_params(self, name: str, params: Mapping[str, Any]) -> list[ParamMistake]:
        """Mistakes in a kernel's parameters, as (key, message, remedy). Nested keys are dotted."""
        from jsonschema import Draft202012Validator  # noqa: PLC0415 - slow to import, and help does without

        info = self._kernels[name]
        errors = Draft202012Validator(info.params).iter_errors(dict(params))
        # One mistake for each key is enough: a value out of range may also fail other rules.
        mistakes = (mistake for error in errors for mistake in _explain(info, error))
        return list({mistake[0]: mistake for mistake in reversed(list(mistakes))}.values())[::-1]


def _written(name: str, default: Any) -> str:
    """A default value as a user would write it."""
    if name.endswith("bytes") and isinstance(default, int):
        return units.format_bytes(default).replace(" ", "")
    return json.dumps(default).strip('"')


@functools.cache
def shipped() -> Catalogue:
    """The catalogue that ships with this version of Partywall."""
    return Catalogue.from_json(resources.files("partywall.agent").joinpath("catalogue.json").read_text("utf-8"))


def _explain(info: KernelInfo, error: ValidationError) -> list[ParamMistake]:  # noqa: PLR0911  one for each keyword
    key = ".".join(str(part) for part in error.absolute_path)
    value: Any = error.instance
    match error.validator:
        case "additionalProperties":
            return [_unknown(info, name) for name in value if name not in info.param_names]
        case "required":
            required: Any = error.validator_value
            missing = [name for name in required if name not in value]
            return [(name, f"{info.name} needs the parameter {name!r}", f"add {name}: …") for name in missing]
        case "type":
            wanted = _types(error.validator_value)
            return [(key, f"{_shown(value)} is not {wanted}", _example(error.schema) or f"give {wanted}")]
        case "enum" | "const" | "oneOf" | "anyOf":
            return [_no_choice(key, value, error)]
        case "minimum" | "exclusiveMinimum":
            than = "at least" if error.validator == "minimum" else "more than"
            return [(key, f"{_shown(value)} is too small", f"give {than} {error.validator_value}")]
        case "multipleOf":
            multiple: Any = error.validator_value
            step = int(multiple)
            near = [str(size) for size in (value // step * step, value // step * step + step) if size > 0]
            return [(key, f"{_shown(value)} is not a multiple of {step}", f"give {' or '.join(near)}")]
        case "maximum" | "exclusiveMaximum":
            than = "at most" if error.validator == "maximum" else "less than"
            return [(key, f"{_shown(value)} is too large", f"give {than} {error.validator_value}")]
        case _:
            return [(key, f"{_shown(value)} does not fit: {error.message}", _example(error.schema))]


def _unknown(info: KernelInfo, name: str) -> ParamMistake:
    near = difflib.get_close_matches(name, info.param_names, 1)
    if near:
        return name, f"{info.name} has no parameter {name!r}", f"did you mean {near[0]}?"
    known = f"it has {', '.join(info.param_names)}" if info.param_names else "it takes none"
    return name, f"{info.name} has no parameter {name!r}", known


def _no_choice(key: str, value: Any, error: ValidationError) -> ParamMistake:
    """A value that matches none of several values or forms."""
    schemas = [error.schema, *(branch.schema for branch in error.context or ())]
    choices = list(dict.fromkeys(str(choice) for schema in schemas for choice in _choices(schema)))
    near = difflib.get_close_matches(str(value), choices, 1)
    if near:
        return key, f"{_shown(value)} is not one of the values of {key}", f"did you mean {near[0]}?"
    if choices:
        return key, f"{_shown(value)} is not one of the values of {key}", f"there are {', '.join(choices)}"
    kinds = [branch["type"] for branch in _branches(error.schema) if "type" in branch]
    return key, f"{_shown(value)} does not fit {key}", f"give {_types(kinds)}" if kinds else error.message


def _branches(schema: Any) -> list[Any]:
    branches = [*schema.get("oneOf", []), *schema.get("anyOf", [])] if isinstance(schema, dict) else []
    return [branch for branch in branches if isinstance(branch, dict)]


def _choices(schema: Any) -> list[Any]:
    own = list(schema.get("enum", [])) + ([schema["const"]] if "const" in schema else [])
    return own + [choice for branch in _branches(schema) for choice in _choices(branch)]


def _types(kinds: Any) -> str:
    names = [kinds] if isinstance(kinds, str) else list(kinds)
    return " or ".join(TYPES.get(str(name), str(name)) for name in names if name != "null") or "nothing"


def _example(schema: Any) -> str:
    default = schema.get("default") if isinstance(schema, dict) else None
    return "" if default is None else f"for example {json.dumps(default)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
