"""Explains pydantic's errors for people: one mistake for each place in the file, with a remedy.

Pure: converts an error and its values to (path, message, remedy). The readers of formats add lines.
"""

from __future__ import annotations

import difflib
import re
import shlex
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from partywall import units
from partywall.core.document.decode import Path, field_of, key_text, model_in

NAME_RULE = "use letters, digits, '.', '_' and '-', beginning with a letter or digit"
OTHER_WORDS = {
    "target": "victim",
    "targets": "victims",
    "tested": "victims",
    "interferer": "aggressor",
    "interferers": "aggressors",
    "antagonist": "aggressor",
    "antagonists": "aggressors",
    "noise": "aggressors",
    "neighbours": "aggressors",
    "neighbors": "aggressors",
    "kernel": "probe (of a victim) or stressor (of an aggressor)",
    "args": "command (a list: program and arguments)",
    "cmd": "command",
    "level": "intensity",
    "levels": "intensity",
    "slo": "goals",
    "slos": "goals",
    "thresholds": "goals",
    "duration": "budget",
    "runtime": "budget",
    "version": "partywall",
    "parameters": "params",
    "pattern": "regex",
    "jsonpath": "json",
    "csv": "csv_column",
    "column": "csv_column",
    "pinning": "cpus",
    "numa": "memory_nodes",
    "nodes": "memory_nodes",
    "nodeset": "memory_nodes",
    "mems": "memory_nodes",
    "membind": "memory_nodes",
    "cpu_shares": "cpu_weight",
    "cpu_quota": "cpu_limit",
    "image": "root (packages in a guest), or domain with backend: libvirt (your own machine with its image)",
}
OTHER_BACKENDS = {
    "kvm": "backend: qemu, which uses KVM if it works",
    "vm": "backend: qemu",
    "docker": "backend: container",
    "podman": "backend: container",
    "xen": "backend: libvirt with uri: xen:///system",
    "host": "backend: process",
}
EXPECTED = {
    "string_type": ("text", "put it in quotes"),
    "int_type": ("a whole number", "for example 2"),
    "int_parsing": ("a whole number", "for example 2"),
    "int_from_float": ("a whole number", "leave the fraction out"),
    "float_type": ("a number", "for example 0.5"),
    "float_parsing": ("a number", "for example 0.5"),
    "finite_number": ("a finite number", "for example 0.5"),
    "bool_type": ("true or false", "without quotes"),
    "bool_parsing": ("true or false", "without quotes"),
    "dict_type": ("keys with values", "write each as key: value, indented below"),
    "model_type": ("keys with values", "write each as key: value, indented below"),
    "model_attributes_type": ("keys with values", "write each as key: value, indented below"),
    "tuple_type": ("a list", ""),
    "list_type": ("a list", ""),
}


_MEANT = re.compile(r"did you mean (\w+)\?")


class Mistake(NamedTuple):
    """What is wrong at a place in the values, and a remedy."""

    path: Path
    message: str
    remedy: str = ""


Form = type[BaseModel]


def explain(error: ValidationError, data: Any, base: Path = (), *, form: Form) -> list[Mistake]:
    """One mistake for each place.

    data: the validated values; base: their place in the file; form: the file's format.
    """
    places: dict[Path, list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        places.setdefault(_place(details, data), []).append(details)
    mistakes = [_translate((*base, *path), path, _first(errors), data, form) for path, errors in places.items()]
    misspelt = {meant(mistake) for mistake in mistakes}
    return [mistake for mistake in mistakes if mistake.path not in misspelt]  # not missing, but misspelt


def meant(mistake: Mistake) -> Path | None:
    """The intended path, if an unknown key is close to a known one."""
    match = _MEANT.fullmatch(mistake.remedy) if "not known here" in mistake.message else None
    return (*mistake.path[:-1], match[1]) if match else None


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """The remedy for an unknown word."""
    choices = list(known)
    near = difflib.get_close_matches(word, choices, 1) or difflib.get_close_matches(word.lower(), choices, 1)
    return f"did you mean {near[0]}?" if near else otherwise or f"there are {', '.join(choices) or 'none'}"


def shown(value: Any) -> str:
    """A value for a message."""
    if isinstance(value, Mapping):
        return "keys with values"
    if isinstance(value, list | tuple):
        return "a list"
    text = (
        {None: "nothing", True: "true", False: "false"}.get(value)
        if value is None or isinstance(value, bool)
        else repr(value)
    )
    return text if text is not None and len(text) <= 60 else f"{str(text)[:57]}…"


def model_at(path: Path, form: Form) -> type[BaseModel] | None:
    """The model for the keys at a path."""
    annotation: Any = form
    for part in path:
        model = model_in(annotation)
        annotation = _bare(annotation)
        if model is not None:
            field = field_of(model, str(part))
            if field is None:
                return None
            annotation = field[1].annotation
        elif get_origin(annotation) is dict:
            annotation = get_args(annotation)[1]
        elif get_origin(annotation) is tuple:
            annotation = get_args(annotation)[0]
        else:
            return None
    return model_in(annotation)


def _bare(annotation: Any) -> Any:
    """`tuple[X, ...]` of `tuple[X, ...] | None`."""
    if get_origin(annotation) not in (Union, types.UnionType, Annotated):
        return annotation
    bare = [_bare(arg) for arg in get_args(annotation)]
    return next((arg for arg in bare if get_origin(arg) in (dict, tuple)), annotation)


def _place(details: ErrorDetails, data: Any) -> Path:
    """The error's path in the file: pydantic's path without the branches of unions."""
    path: list[str | int] = []
    for part in details["loc"]:
        if holds(data, part):
            data = data[part]
        elif details["type"] != "missing":
            continue
        path.append(part)
    return tuple(path)


def holds(data: Any, part: str | int) -> bool:
    """True if a mapping or list has this key or index."""
    if isinstance(data, list):
        return isinstance(part, int) and part < len(data)
    return isinstance(data, dict) and part in data


def _at(data: Any, path: Path) -> Any:
    """The value in the file. The error's own input may already be converted, such as a size or duration."""
    for part in path:
        data = data[part]
    return data


def _first(errors: list[ErrorDetails]) -> ErrorDetails:
    """The most specific error among a union's branches: a wrong range before a wrong type."""
    typed = [details for details in errors if details["type"] not in (*EXPECTED, "literal_error")]
    texts = [details for details in errors if details["type"] == "string_type"]
    typed = typed or texts
    return typed[0] if len(errors) > 1 and typed else errors[0]


def _translate(path: Path, inner: Path, details: ErrorDetails, data: Any, form: Form) -> Mistake:  # noqa: PLR0911  one for each kind
    kind, context = details["type"], details.get("ctx", {})
    value = (
        details["input"] if kind in ("missing", "extra_forbidden") or "[key]" in details["loc"] else _at(data, inner)
    )
    name = next((part for part in reversed(path) if isinstance(part, str)), "the file")
    if kind == "missing":
        return Mistake(path, f"the key {name!r} is missing", _purpose(path, name, form))
    if kind == "extra_forbidden":
        return _unknown_key(path, name, form)
    if "[key]" in details["loc"] or kind == "string_pattern_mismatch":
        return Mistake(path, f"{shown(value)} cannot be a name", NAME_RULE)
    if kind == "string_too_long":
        return Mistake(path, f"{shown(value)} is too long", f"use at most {context['max_length']} characters")
    if len(path) == 3 and path[0] == "factors" and kind in EXPECTED:
        return Mistake(path, f"a level cannot be {shown(value)}", "give text, a number, true or false")
    if kind in ("tuple_type", "list_type"):
        return Mistake(path, f"{name} must be a list, not {shown(value)}", _as_list(name, value))
    if kind in EXPECTED:
        what, remedy = EXPECTED[kind]
        return Mistake(path, f"{name} must be {what}, not {shown(value)}", remedy)
    return _out_of_range(path, name, kind, context, value, details["msg"])


def _at_most(path: Path, most: Any, value: Any) -> str:
    """The upper limit. For a share that was probably meant in percent, the value with %."""
    if most != 1 or isinstance(value, bool) or not isinstance(value, int | float | str):
        return f"give at most {_bound(path, most, value)}"
    try:
        percent = float(value)
    except ValueError:
        return f"give at most {most}"
    return f"write {percent:g}%, or give at most 1" if 1 < percent <= 100 else "give at most 1, which is 100%"


def _out_of_range(path: Path, name: str, kind: str, context: Mapping[str, Any], value: Any, said: str) -> Mistake:  # noqa: PLR0911
    match kind:
        case "greater_than":
            return Mistake(path, f"{shown(value)} is too small", f"give more than {context['gt']}")
        case "greater_than_equal":
            return Mistake(path, f"{shown(value)} is too small", f"give at least {_bound(path, context['ge'], value)}")
        case "less_than" | "less_than_equal":
            return Mistake(
                path, f"{shown(value)} is too large", _at_most(path, context.get("le", context.get("lt")), value)
            )
        case "too_short" if context["min_length"] == 1:
            return Mistake(path, f"{name} is empty", "give at least one")
        case "too_short" | "too_long":
            bound = context.get("min_length", context.get("max_length"))
            return Mistake(path, f"{name} has {context['actual_length']} values", f"give {bound}")
        case "literal_error":
            choices = str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
            other = OTHER_BACKENDS.get(str(value).lower()) if "container" in choices else None
            remedy = f"did you mean {other}?" if other else did_you_mean(str(value), choices)
            return Mistake(path, f"{name} cannot be {shown(value)}", remedy)
        case "value_error":
            message, _, remedy = str(context["error"]).partition("; ")
            return Mistake(path, message, remedy)
        case _:
            return Mistake(path, f"{name}: {said[:200]}")


def _bound(path: Path, bound: Any, value: Any) -> str:
    """A limit for people. Durations are nanoseconds inside, shown in ms or s. Sizes are bytes, shown as sizes."""
    if isinstance(bound, int) and (path[:1] == ("timing",) or _is_duration(value)):
        return f"{bound // 10**6}ms" if bound < 10**9 else f"{bound // 10**9}s"
    if isinstance(bound, int) and _is_text_of(units.parse_bytes, value) and not value.strip().isdigit():
        return units.format_bytes(bound).replace(" ", "")
    return str(bound)


def _is_duration(value: Any) -> bool:
    """True for a text such as 100ms."""
    return _is_text_of(units.parse_duration_ns, value)


def _is_text_of(parse: Callable[[str], int], value: Any) -> bool:
    try:
        return isinstance(value, str) and parse(value) >= 0
    except ValueError:
        return False


def _purpose(path: Path, name: str, form: Form) -> str:
    model = model_at(path[:-1], form)
    field = field_of(model, name) if model else None
    if path == ("partywall",):
        return "add partywall: 1, the version of the format"
    said = field[1].description if field else None
    return f"add {name}: …" + (f" ({said})" if said else "")


def _unknown_key(path: Path, name: str, form: Form) -> Mistake:
    message = f"the key {shown(name)} is not known here"
    model = model_at(path[:-1], form)
    known = [info.alias or field for field, info in model.model_fields.items()] if model else []
    close = difflib.get_close_matches(name.lower().replace("-", "_"), known, 1)
    if close:
        return Mistake(path, message, f"did you mean {close[0]}?")
    if elsewhere := _elsewhere(path, name, form):
        return Mistake(path, message, f"it belongs to {elsewhere}")
    other = OTHER_WORDS.get(name.lower())
    if other and (other in known or " " in other):
        return Mistake(path, message, f"did you mean {other}?")
    return Mistake(path, message, f"known keys are {', '.join(known)}")


def _elsewhere(path: Path, name: str, form: Form) -> str:
    """Where the key belongs: a group of keys below, beside or above the place where it was found."""
    holders = [path[:end] for end in range(len(path) - 1, -1, -1)]
    for holder in holders:
        model = model_at(holder, form)
        for key, info in (model.model_fields if model else {}).items():
            below = model_in(info.annotation)
            if below and field_of(below, name):
                return key_text((*holder, info.alias or key))
        if model and holder != path[:-1] and field_of(model, name):
            return key_text(holder) or "the top of the file"
    return ""


def _as_list(name: str, value: Any) -> str:
    if name == "command" and isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError:
            words = value.split()
        return f"write [{', '.join(words)}]"[:200]
    return f"write [{value}]"[:200] if isinstance(value, str | int | float) else "write [first, second]"
