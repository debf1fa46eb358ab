"""Hosts from an Ansible inventory: INI, YAML, the JSON of `ansible-inventory --list`, or a program that prints it.

Read here without Ansible: groups, children, variables and ranges such as `web[01:50]`. What only Ansible itself can do
(plugins, templates, vaults, files in group_vars) comes in as its JSON. Values are texts.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from partywall.core.document.decode import Document, decode
from partywall.core.document.decode import Path as KeyPath
from partywall.core.document.reading import read
from partywall.errors import Problem, UsageError

LARGER = 64
"""An inventory may be longer than a scenario by this factor."""
SCRIPT_S = 60.0
MOST = 10_000
"""Hosts of a fleet."""
NAME = r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,200}"
_SECTION = re.compile(r"\[([^\]:]+)(?::(vars|children))?\]\s*(?:#.*)?$")
_RANGE = re.compile(r"\[(\w*):(\w*)(?::(\d+))?\]")
_INSTEAD = "write it as Ansible does, or give the output of: ansible-inventory -i FILE --list"


@dataclass(frozen=True)
class Place:
    """A host. groups: all that it is in, apart from `all`. variables: those of its groups and its own."""

    name: str
    groups: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Group:
    hosts: dict[str, dict[str, str]] = field(default_factory=dict)
    children: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)


_Groups = dict[str, _Group]


def load(path: Path) -> tuple[Place, ...]:
    """The hosts of an inventory, in its order. UsageError with everything that is wrong with it."""
    if path.is_file() and os.access(path, os.X_OK):
        return places(_from_json(_printed(path), str(path)), str(path))
    raw = read(path, "inventory", larger=LARGER)
    return places(parsed(raw, path.name, str(path)), str(path))


def parsed(raw: bytes, name: str, file: str) -> _Groups:
    """The groups of a file's content. name: tells its form by its ending; without one, its content does."""
    ending = Path(name).suffix
    text = raw.decode("utf-8-sig", errors="replace")
    if ending == ".json" or text.lstrip().startswith("{"):
        return _from_json(text, file)
    if ending in (".yaml", ".yml") or text.lstrip().startswith("---"):
        return _from_yaml(raw, file)
    return _from_ini(text, file)


def places(groups: _Groups, file: str) -> tuple[Place, ...]:
    """The hosts with the variables of all of their groups: those of parents first, then of children, then their own."""
    depths = _depths(groups, file)
    of: dict[str, list[str]] = {}
    for name, group in groups.items():
        for host in group.hosts:
            of.setdefault(host, [])
        for host in _below(groups, name):
            of.setdefault(host, []).append(name)
    if not of:
        raise UsageError(Problem("it has no hosts", "write one host a line", file))
    if len(of) > MOST:
        raise UsageError(Problem(f"it has {len(of)} hosts, and a fleet at most {MOST}", "choose some of them", file))
    if odd := [host for host in of if not re.fullmatch(NAME, host)]:
        raise UsageError(*(Problem(f"{host!r} is not the name of a host", _INSTEAD, file) for host in odd))
    result = []
    for host, names in of.items():
        variables: dict[str, str] = {}
        for name in sorted(set(names), key=lambda each: (each != "all", depths[each], each)):
            variables |= groups[name].variables
        for name in names:
            variables |= groups[name].hosts.get(host, {})
        result.append(Place(host, tuple(sorted(set(names) - {"all", "ungrouped"})), variables))
    return tuple(result)


def chosen(every: Sequence[Place], pattern: str) -> tuple[Place, ...]:
    """The hosts that a pattern means: names or groups, with * and ?, separated by commas; !NAME leaves one out.

    UsageError for a part that means none.
    """
    kept: dict[str, Place] = {}
    parts = [part.strip() for part in pattern.split(",") if part.strip()]
    if all(part.startswith("!") for part in parts):
        kept = {place.name: place for place in every}
    for part in sorted(parts, key=lambda each: each.startswith("!")):
        wanted = part.removeprefix("!")
        means = [each for each in every if any(fnmatchcase(name, wanted) for name in (each.name, *each.groups, "all"))]
        if not means:
            names = ", ".join(sorted({group for each in every for group in each.groups})) or "none"
            raise UsageError(Problem(f"no host or group is called {wanted!r}", f"its groups are: {names}"))
        for place in means:
            if part.startswith("!"):
                kept.pop(place.name, None)
            else:
                kept[place.name] = place
    return tuple(place for place in every if place.name in kept)


def _depths(groups: _Groups, file: str) -> dict[str, int]:
    """How deep each group is below others. UsageError for a child that is not there, or a circle."""
    parents: dict[str, list[str]] = {name: [] for name in groups}
    for name, group in groups.items():
        for child in group.children:
            if child not in groups:
                raise UsageError(Problem(f"child {child!r} of group {name} is not a group", _INSTEAD, file))
            parents[child].append(name)
    known: dict[str, int] = {}

    def depth(name: str, above: tuple[str, ...]) -> int:
        if name in above:
            raise UsageError(Problem(f"group {name} is inside itself: {' > '.join((*above, name))}", _INSTEAD, file))
        if name not in known:
            known[name] = 1 + max((depth(parent, (*above, name)) for parent in parents[name]), default=-1)
        return known[name]

    for name in groups:
        depth(name, ())
    return known


def _below(groups: _Groups, name: str) -> Iterator[str]:
    yield from groups[name].hosts
    for child in groups[name].children:
        yield from _below(groups, child)


def expanded(pattern: str) -> list[str]:
    """The names of a pattern: 'web[01:03]' is web01, web02, web03. ValueError for a range that is none."""
    match = _RANGE.search(pattern)
    if match is None:
        return [pattern]
    low, high, step = match[1], match[2], int(match[3] or 1)
    if low.isdigit() and high.isdigit() and step:
        width = len(low) if low.startswith("0") else 0
        middles = [f"{number:0{width}d}" for number in range(int(low), min(int(high), int(low) + MOST) + 1, step)]
    elif len(low) == len(high) == 1 and low.isalpha() and high.isalpha() and step:
        middles = [chr(number) for number in range(ord(low), ord(high) + 1, step)]
    else:
        raise ValueError(f"{match[0]} is no range")
    if not middles:
        raise ValueError(f"{match[0]} is empty")
    return [name for middle in middles for name in expanded(pattern[: match.start()] + middle + pattern[match.end() :])]


def _from_ini(text: str, file: str) -> _Groups:
    groups: _Groups = {"ungrouped": _Group()}
    section, kind = "ungrouped", ""
    problems = []
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#;":
            continue
        try:
            if stripped.startswith("["):
                match = _SECTION.match(stripped)
                if match is None:
                    raise ValueError(f"{stripped} is no section")  # noqa: TRY301 - reported with its line
                section, kind = match[1].strip(), match[2] or ""
                groups.setdefault(section, _Group())
            else:
                _ini_line(groups[section], kind, stripped)
        except ValueError as error:
            problems.append(Problem(str(error), _INSTEAD, file, number))
    if problems:
        raise UsageError(*problems)
    # A child may be declared nowhere else.
    for child in [child for group in groups.values() for child in group.children]:
        groups.setdefault(child, _Group())
    return groups


def _ini_line(group: _Group, kind: str, line: str) -> None:
    if kind == "children":
        group.children.append(line.split("#")[0].strip())
        return
    if kind == "vars":
        key, separator, value = line.partition("=")
        if not separator:
            raise ValueError(f"{line!r} has no =")
        group.variables[key.strip()] = _unquoted(value.strip())
        return
    name, *rest = shlex.split(line, comments=True)
    variables = {}
    for word in rest:
        key, separator, value = word.partition("=")
        if not separator:
            raise ValueError(f"{word!r} after host {name} has no =")
        variables[key] = value
    for host in expanded(name):
        group.hosts.setdefault(host, {}).update(variables)


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def _from_yaml(raw: bytes, file: str) -> _Groups:
    document = decode(raw, file, larger=LARGER)
    if document.problems:
        raise UsageError(*document.problems)
    if not isinstance(document.data, dict):
        raise UsageError(Problem("it is not an inventory: the outermost level must be groups", _INSTEAD, file, 1))
    walk = _Yaml(document, file)
    for name, content in document.data.items():
        walk.take(name, content, (name,))
    if walk.problems:
        raise UsageError(*walk.problems)
    return walk.groups


class _Yaml:
    """The groups of a YAML inventory, and every mistake in it."""

    KEYS = ("hosts", "children", "vars")

    def __init__(self, document: Document, file: str) -> None:
        self._document, self._file = document, file
        self.groups: _Groups = {}
        self.problems: list[Problem] = []

    def take(self, name: str, content: Any, path: KeyPath) -> None:
        """Adds a group with all that is below it."""
        group = self.groups.setdefault(name, _Group())
        if content is not None and not isinstance(content, dict):
            self._wrong(f"group {name} needs the keys {', '.join(self.KEYS)}", path)
            return
        for key in (content or {}).keys() - set(self.KEYS):
            self._wrong(f"group {name} has a key {key!r}; it may have {', '.join(self.KEYS)}", (*path, key))
        group.variables |= _texts(self._part(content, "vars", path))
        for pattern, variables in self._part(content, "hosts", path).items():
            self._hosts(group, pattern, variables, (*path, "hosts", pattern))
        for child, below in self._part(content, "children", path).items():
            group.children.append(child)
            self.take(child, below, (*path, "children", child))

    def _hosts(self, group: _Group, pattern: str, variables: Any, path: KeyPath) -> None:
        try:
            for host in expanded(pattern):
                group.hosts.setdefault(host, {}).update(_texts(variables))
        except ValueError as error:
            self._wrong(str(error), path)

    def _part(self, content: Any, key: str, path: KeyPath) -> Mapping[str, Any]:
        value = (content or {}).get(key) or {}
        if isinstance(value, dict):
            return value
        self._wrong(f"{key} must be names with a colon behind each, not a {type(value).__name__}", (*path, key))
        return {}

    def _wrong(self, message: str, path: KeyPath) -> None:
        self.problems.append(Problem(message, _INSTEAD, self._file, self._document.line(path)))


def _texts(variables: Any) -> dict[str, str]:
    every = variables if isinstance(variables, dict) else {}
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in every.items()}


def _from_json(text: str, file: str) -> _Groups:
    """The groups of `ansible-inventory --list`, which is also what an inventory program prints.

    A file may also have the form of YAML inventories, whose hosts have their variables below them.
    """
    try:
        content = json.loads(text)
        if any(isinstance(part, dict) for group in content.values() for part in _nested(group)):
            return _from_yaml(text.encode(), file)
        own = content.pop("_meta", {}).get("hostvars", {})
        groups: _Groups = {}
        for name, group in content.items():
            made = group if isinstance(group, dict) else {"hosts": group}
            hosts: dict[str, dict[str, str]] = {host: {} for host in made.get("hosts", ())}
            groups[name] = _Group(hosts, list(made.get("children", ())), _texts(made.get("vars")))
        for child in [child for group in groups.values() for child in group.children]:
            groups.setdefault(child, _Group())
        for group in groups.values():
            for host in group.hosts:
                group.hosts[host] = _texts(own.get(host))
    except (ValueError, AttributeError, TypeError) as error:
        said = f"it is not the JSON of an inventory: {str(error).partition(chr(10))[0]}"
        raise UsageError(Problem(said, "check that it is the output of: ansible-inventory --list", file)) from None
    return groups


def _nested(group: Any) -> tuple[Any, Any]:
    return (group.get("hosts"), group.get("children")) if isinstance(group, dict) else (None, None)


def beside(path: Path) -> list[str]:
    """The folders beside an inventory with variables that are not read."""
    return [name for name in ("group_vars", "host_vars") if (path.parent / name).is_dir()]


def _printed(path: Path) -> str:
    """What an inventory program prints with `--list`."""
    try:
        done = subprocess.run(
            [str(path.resolve()), "--list"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=SCRIPT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        said = f"this program printed no inventory within {SCRIPT_S:g} s"
        raise UsageError(Problem(said, "run it with --list yourself", str(path))) from None
    except OSError as error:
        said = f"it is executable, and cannot be run: {error.strerror}"
        raise UsageError(Problem(said, "if it is no program: chmod -x", str(path))) from None
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2] or "it said nothing"
        raise UsageError(Problem(f"with --list it ended with {done.returncode}: {last}", "run it yourself", str(path)))
    return done.stdout
