"""Factors: what a scenario varies, and the resulting scenarios. Pure.

A path names a setting: `victim.X` (every victim), `victims.NAME.X`, `aggressor.X`, `aggressors.NAME.X` or `sandbox.X`
(every sandbox), where X is a key of that part of the scenario, or a setting of the host, `host.X`. Only the type of a
value is checked here. `partywall.run.check.rules` checks whether a level makes sense.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter

from partywall.core.document.decode import field_of, model_in
from partywall.host.settings.held import HostSettings
from partywall.run.document.scenario import Scenario, Victim
from partywall.sandbox.backends import BACKENDS
from partywall.sandbox.document import Sandbox
from partywall.values import Level

At = tuple[str, ...]
Factors = Mapping[str, tuple[Level, ...]]
Levels = dict[str, Level]

VARIABLE = ("sandbox", "params", "threads", "env", "probe", "stressor")
SPELLED_MAX = 64
"""The most keys that a path with braces names."""
WITH_LIMIT = "cpu_reservation"
"""Also live if varied together with a limit. The promise is then that of the limit."""


class FactorError(ValueError):
    """A path that names nothing that can be varied, with a remedy."""

    def __init__(self, message: str, remedy: str = "", near: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.remedy = remedy
        self.near = near


def targets(scenario: Scenario, path: str) -> tuple[At, ...]:
    """The keys of the scenario that a factor's path names. Raises FactorError.

    `sandbox.{cpu_limit,cpu_reservation}` names several keys that get the same level.
    """
    if (several := spelled(path)) != (path,):
        return tuple(at for each in several for at in targets(scenario, each))
    head, _, rest = path.partition(".")
    if not rest:
        raise FactorError(
            f"{path!r} is not a path", "write for example victim.sandbox.cpu_limit or aggressor.params.block_bytes"
        )
    match head:
        case "victim":
            places = [("victims", name, *_keys(rest)) for name in scenario.victims]
        case "aggressor":
            places = [("aggressors", name, *_keys(rest)) for name in scenario.aggressors]
        case "sandbox":
            places = [(kind, name, "sandbox", *_keys(rest)) for kind, name in _sandboxes(scenario)]
        case "victims" | "aggressors":
            places = [_named(scenario, head, rest)]
        case "host":
            return (_of_host(rest),)
        case _:
            heads = ("victim", "victims", "aggressor", "aggressors", "sandbox", "host")
            raise FactorError(f"{path!r} begins with {head!r}", f"begin with one of {', '.join(heads)}", heads)
    if not places:
        raise FactorError(f"{path!r} names nothing: there are no aggressors", "add aggressors or leave the factor out")
    for at in places:
        _must_vary(at)
    return tuple(places)


def _of_host(key: str) -> At:
    known = tuple(HostSettings.model_fields)
    if key not in known:
        raise FactorError(f"{key!r} is not a setting of the host", f"there are {', '.join(known)}", known)
    return ("host", key)


def spelled(path: str) -> tuple[str, ...]:
    """A path with braces expanded: one path for each name in them. Raises FactorError if there are too many."""
    if math.prod(names.count(",") + 1 for names in re.findall(r"\{([^{}]*)\}", path)) > SPELLED_MAX:
        raise FactorError(f"the path names more than {SPELLED_MAX} keys", "write fewer names in braces")
    braces = re.search(r"\{([^{}]*)\}", path)
    if braces is None:
        return (path,)
    names = [name.strip() for name in braces[1].split(",")]
    return tuple(
        spelling for name in names for spelling in spelled(path[: braces.start()] + name + path[braces.end() :])
    )


def setting(path: str) -> str:
    """The setting of a sandbox in a path without braces: 'victim.sandbox.disk.read_bps' → 'disk.read_bps'."""
    return path.rpartition("sandbox.")[2]


def apply(scenario: Scenario, path: str, level: Level) -> Scenario:
    """The scenario with `level` at `path`. Raises FactorError, or ValidationError for the level."""
    for at in targets(scenario, path):
        scenario = _set(scenario, at, level)
    return scenario


def expand(scenario: Scenario, factors: Factors | None = None) -> list[tuple[Levels, Scenario]]:
    """Every combination of levels with its scenario. The last factor changes fastest.

    factors: those to combine, by default all of the scenario. Without factors there is one empty combination.
    """
    chosen = scenario.factors if factors is None else factors
    return [(levels, _with(scenario, levels)) for levels in combinations(chosen)]


def combinations(factors: Factors) -> Iterator[Levels]:
    """Every combination of levels, lazily."""
    for values in itertools.product(*factors.values()):
        yield dict(zip(factors, values, strict=True))


def split(scenario: Scenario) -> tuple[dict[str, tuple[Level, ...]], dict[str, tuple[Level, ...]]]:
    """(live, static): factors switched by slot, and factors whose levels make separate trials.

    In a container or guest, a victim's CPU limit, weight and disk limits can be switched while it runs, and in a guest
    also memory. A factor that also affects aggressors is static, because a treatment switches only its victim's
    settings.
    """
    live = {path: levels for path, levels in scenario.factors.items() if _is_live(scenario, path)}
    return live, {path: levels for path, levels in scenario.factors.items() if path not in live}


def concerning(scenario: Scenario, factors: Factors, victim: str) -> dict[str, tuple[Level, ...]]:
    """The factors that affect a trial of `victim`: all except those that name only other victims."""

    def concerns(path: str) -> bool:
        return any(at[0] != "victims" or at[1] == victim for at in targets(scenario, path))

    return {path: levels for path, levels in factors.items() if concerns(path)}


def trials(scenario: Scenario) -> list[tuple[str, Levels, Scenario]]:
    """(victim, static levels, scenario) for each trial, in the order of the file."""
    _, static = split(scenario)
    return [
        (victim, levels, applied)
        for victim in scenario.victims
        for levels, applied in expand(scenario, concerning(scenario, static, victim))
    ]


def _with(scenario: Scenario, levels: Levels) -> Scenario:
    for path, level in levels.items():
        scenario = apply(scenario, path, level)
    return scenario


def _is_live(scenario: Scenario, path: str) -> bool:
    """True if a factor is switched by slot. Decided for the whole run, so a varied backend makes it static."""
    ats = targets(scenario, path)
    backends = {at[:2] for other in scenario.factors if other.endswith(".backend") for at in targets(scenario, other)}
    settings = {".".join(at[3:]) for at in ats}
    settings -= {WITH_LIMIT} if "cpu_limit" in settings else set()
    return all(
        at[0] == "victims"
        and at[2] == "sandbox"
        and settings <= BACKENDS[scenario.victims[at[1]].sandbox.backend].live
        and at[:2] not in backends
        for at in ats
    )


def memory_levels(victim: Victim, live: Factors) -> tuple[int, ...]:
    """The levels, in bytes, that a victim's memory is switched between, including its own; empty if it is not switched.

    live: the factors that concern this victim.
    """
    levels = [level for path, values in live.items() if path.endswith("sandbox.memory") for level in values]
    sizes = [_adapter(Sandbox, "memory").validate_python(level) for level in levels]
    own = [victim.sandbox.memory] if sizes and victim.sandbox.memory is not None else []
    return (*sizes, *own)


def _sandboxes(scenario: Scenario) -> list[tuple[str, str]]:
    return [("victims", name) for name in scenario.victims] + [("aggressors", name) for name in scenario.aggressors]


def _named(scenario: Scenario, kind: str, rest: str) -> At:
    """Names may contain dots, so the longest matching name is used."""
    names: tuple[str, ...] = tuple(getattr(scenario, kind))
    for name in sorted(names, key=len, reverse=True):
        if rest.startswith(f"{name}."):
            return (kind, name, *_keys(rest.removeprefix(f"{name}.")))
    key = rest.partition(".")[0]
    if key in names:
        raise FactorError(
            f"{kind}.{rest!s} names a whole {kind[:-1]}, not a key of it", f"add the key: {kind}.{rest}.threads"
        )
    raise FactorError(f"there is no {key!r} among the {kind}", f"{kind} are {', '.join(names) or 'none'}", names)


def _keys(rest: str) -> At:
    """Names of parameters and variables are the rest of the path, including dots."""
    head, _, tail = rest.partition(".")
    return (head, tail) if head in ("params", "env") else tuple(rest.split("."))


def _must_vary(at: At) -> None:
    """Follows the format along the path, so that a wrong key is found whatever the current values are."""
    kind, name, *keys = at
    if keys[0] == "intensity":
        remedy = f"list its levels there, aggressors.{name}.intensity: [0.5, 1]; they are switched by slot"
        raise FactorError("intensity is not a factor", remedy)
    model = model_in(get_args(Scenario.model_fields[kind].annotation)[-1])
    for depth, key in enumerate(keys):
        if model is None:
            raise FactorError(f"{'.'.join(keys[:depth])!r} has no keys below it", f"end the path at {keys[depth - 1]}")
        known = tuple(info.alias or name for name, info in model.model_fields.items())
        choices = tuple(k for k in known if k in VARIABLE) if depth == 0 else known
        if key not in choices:
            remedy = f"there are {', '.join(choices)}"
            raise FactorError(f"{key!r} is not a key that can be varied here", remedy, choices)
        if key in ("params", "env"):
            if keys[depth + 1 :] in ([], [""]):
                raise FactorError(f"{'.'.join(keys)!r} names no single value", f"add which: {key}.NAME")
            return
        field = field_of(model, key)
        model = model_in(field[1].annotation) if field else None
    if model is not None:
        first = next(iter(model.model_fields))
        raise FactorError(
            f"{'.'.join(keys)!r} names a group of keys, not a value", f"add the key: {'.'.join(keys)}.{first}"
        )


def _set(model: Any, at: At, level: Level) -> Any:
    key, *rest = at
    if isinstance(model, dict):
        return {**model, key: _set(model[key], tuple(rest), level) if rest else level}
    name, info = field_of(type(model), key) or (key, None)
    if not rest:
        owner: type[BaseModel] = type(model)
        return model.model_copy(update={name: _adapter(owner, name).validate_python(level)})
    below = getattr(model, name)
    if below is None and info is not None and (absent := model_in(info.annotation)):
        below = absent()
    return model.model_copy(update={name: _set(below, tuple(rest), level)})


@functools.cache
def _adapter(model: type[BaseModel], name: str) -> TypeAdapter[Any]:
    return TypeAdapter(model.model_fields[name].rebuild_annotation())
