"""Compiles a checked plan to the load program for the agent. Pure except for the files that the plan names.

The program's keys follow the plan's, so that the agent's messages can be mapped to lines (`plan.locate`).
"""

from __future__ import annotations

import base64
import contextlib
import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from partywall.errors import Problem, UsageError
from partywall.files import lines_of
from partywall.load.check import Loaded, label_of, think_times
from partywall.load.document import (
    Body,
    Check,
    Closed,
    Compress,
    Extract,
    Feeder,
    Http,
    LoadPlan,
    Open,
    Part,
    Step,
    Think,
    User,
)

Json = dict[str, Any]
HIGHEST = 2**63 - 1


def program(loaded: Loaded, *, inline: bool = False) -> Json:
    """The load program. Files are named by absolute path, or with `inline` their content is included."""
    compiled_program = _program(loaded)
    return inlined(compiled_program) if inline else compiled_program


def _program(loaded: Loaded) -> Json:
    plan, folder = loaded.plan, loaded.folder
    return {
        "kinds": [_kind(name, user, plan, folder) for name, user in plan.users.items()],
        "pacing": _pacing(plan),
        "feeders": {name: _feeder(feeder, folder) for name, feeder in plan.feeders.items()},
        "connections": {
            "keep_alive": plan.connections.keep_alive,
            "across_iterations": plan.connections.across_iterations,
            "connect_timeout_ns": plan.connections.connect_timeout,
            "protocol": plan.connections.protocol,
            "local_addresses": list(plan.connections.from_addresses),
        },
        "addresses": {place.lower(): list(to) for place, to in plan.connections.to.items()},
        "tls": {
            "verify": plan.tls.verify,
            "resume": plan.tls.resume,
            "authorities_pem": None
            if plan.tls.authorities is None
            else (folder / plan.tls.authorities).read_text(encoding="ascii", errors="replace"),
        },
        "grace_ns": plan.grace,
    }


def _pacing(plan: LoadPlan) -> Json:
    if plan.closed is not None:
        closed: Json = {"stages": _stages(plan.closed, plan.closed.users)}
        return {"closed": closed if plan.closed.every is None else closed | {"every_ns": plan.closed.every}}
    if plan.open is None:
        raise ValueError("a plan that was checked has a pacing")
    stages = _stages(plan.open, plan.open.rate)
    return {"open": {"arrivals": plan.open.arrivals, "stages": stages, "users_max": plan.open.users_max}}


def _stages(pacing: Closed | Open, level: float | None) -> list[Json]:
    if pacing.stages:
        return [{"to": stage.to, "for_ns": stage.for_} for stage in pacing.stages]
    top = float(level or 0)
    ends = ((top, pacing.ramp_up), (top, pacing.hold), (0.0, pacing.ramp_down))
    # The first stage is kept even if its duration is 0: it is the jump from no load.
    return [{"to": to, "for_ns": ns} for number, (to, ns) in enumerate(ends) if ns or number == 0]


def _kind(name: str, user: User, plan: LoadPlan, folder: Path) -> Json:
    def steps(plan_steps: Sequence[Step]) -> list[Json]:
        return [_step(step, plan, folder) for step in plan_steps]

    return {
        "name": name,
        "weight": user.weight,
        "variables": dict(user.variables),
        "cookies": user.cookies,
        "init": steps(user.init),
        "actions": steps(user.actions),
        "end": steps(user.end),
    }


def _step(step: Step, plan: LoadPlan, folder: Path) -> Json:  # noqa: PLR0911 - one for each kind
    def steps(plan_steps: Sequence[Step]) -> list[Json]:
        return [_step(below, plan, folder) for below in plan_steps]

    if step.http:
        return {"http": _http(step.http, plan, folder)}
    if step.think:
        return {"think": _think(step.think, folder)}
    if step.compress:
        return {"compress": _compress(step.compress)}
    if step.repeat:
        return {"repeat": {"times": step.repeat.times, "steps": steps(step.repeat.steps)}}
    if step.transaction:
        return {"transaction": {"name": step.transaction.name, "steps": steps(step.transaction.steps)}}
    if step.choose:
        return {"choose": [{"weight": branch.weight, "steps": steps(branch.steps)} for branch in step.choose]}
    return {"feed": {"feeder": step.feed}}


def _compress(compress: Compress) -> Json:
    made = {"name": compress.name, "file_bytes": compress.size, "level": compress.level}
    return made if compress.threads is None else made | {"threads": compress.threads}


def _think(think: Think, folder: Path) -> Json:
    if think.uniform:
        return {"uniform": {"from_ns": think.uniform[0], "to_ns": think.uniform[1]}}
    if think.exponential is not None:
        return {"exponential": {"mean_ns": think.exponential}}
    if think.log_normal:
        return {"log_normal": {"median_ns": think.log_normal.median, "sigma": think.log_normal.sigma}}
    if think.file is not None:
        return {"any_of_ns": think_times(folder / think.file)}
    return {"constant_ns": think.constant}


def _http(http: Http, plan: LoadPlan, folder: Path) -> Json:
    content, content_type = _body(http.body, folder)
    given = {name.lower() for name in http.headers}
    own = {} if content_type is None or "content-type" in given else {"Content-Type": content_type}
    return {
        "name": label_of(http),
        "method": http.method,
        "url": whole_url(http.url, plan.base),
        "headers": [{"name": name, "value": value} for name, value in (http.headers | own).items()],
        "body": content,
        "timeout_ns": http.timeout,
        "redirects": http.redirects,
        "extract": [_extract(name, extract) for name, extract in http.extract.items()],
        "checks": [_check(check) for check in http.checks],
    }


def whole_url(url: str, base: str | None) -> str:
    """A complete URL. A URL that begins with / is below the base's host, as in a browser."""
    return urljoin(base, url) if base is not None and url.startswith("/") else url


def _body(body: Body | None, folder: Path) -> tuple[Json | None, str | None]:  # noqa: PLR0911 - one for each kind
    """(content to send, default content type)."""
    if body is None:
        return None, None
    if body.json_ is not None:
        return {"json": json.dumps(body.json_, ensure_ascii=False)}, "application/json"
    if body.base64 is not None:
        return {"base64": body.base64}, None
    if body.file is not None:
        return {"file": str(folder / body.file)}, None
    if body.form is not None:
        return {"form": [{"name": name, "value": value} for name, value in body.form.items()]}, None
    if body.multipart is not None:
        return {"multipart": [_part(name, part, folder) for name, part in body.multipart.items()]}, None
    return {"text": body.text}, None


def _part(name: str, part: Part, folder: Path) -> Json:
    content = {"text": part.text} if part.file is None else {"file": str(folder / part.file)}
    return {"name": name, "content": content, "content_type": part.content_type}


def _extract(name: str, extract: Extract) -> Json:
    source: Json
    if extract.regex is not None:
        source = {"regex": extract.regex}
    elif extract.json_ is not None:
        source = {"json_path": extract.json_}
    elif extract.css is not None:
        source = {"css": {"selector": extract.css, "attribute": extract.attribute}}
    else:
        source = {"header": extract.header}
    return {"into": name, "from": source, "pick": extract.pick, "default": extract.default}


def _check(check: Check) -> Json:
    makers: Mapping[str, Callable[[Any], Any]] = {
        "status": lambda wanted: dict(
            zip(("from", "to"), wanted if isinstance(wanted, tuple) else (wanted,) * 2, strict=True)
        ),
        "contains": str,
        "lacks": str,
        "matches": str,
        "header": lambda wanted: {"name": wanted.name, "contains": wanted.contains},
        "json_": lambda wanted: {"path": wanted.path, "equals": wanted.equals},
        "size": lambda wanted: {"from": wanted.least, "to": HIGHEST if wanted.most is None else wanted.most},
        "within": int,
    }
    names = {"json_": "json_path", "size": "body_bytes", "within": "within_ns"}
    key = next(key for key in makers if getattr(check, key) is not None)
    return {names.get(key, key): makers[key](getattr(check, key))}


def _feeder(feeder: Feeder, folder: Path) -> Json:
    rows: Json
    if feeder.csv is not None:
        rows = {"csv": str(folder / feeder.csv)}
    elif feeder.json_lines is not None:
        rows = {"json_lines": str(folder / feeder.json_lines)}
    else:
        given = feeder.rows or ({},)
        columns = list(given[0])
        rows = {"inline": {"columns": columns, "rows": [[row[column] for column in columns] for row in given]}}
    return {"rows": rows, "order": feeder.order, "shared": feeder.shared, "when_spent": feeder.when_spent}


# For sandboxes that cannot see the host's files


def inlined(program: Mapping[str, Any]) -> Json:
    """The program with the content of every file instead of its name. UsageError for unreadable files."""
    feeders = {name: feeder | {"rows": _rows(feeder["rows"])} for name, feeder in program.get("feeders", {}).items()}
    return {**_with_contents(program), "feeders": feeders}


def _rows(rows: Json) -> Json:
    if "csv" in rows:
        with _read(rows["csv"]), Path(rows["csv"]).open(newline="", encoding="utf-8-sig") as stream:
            # The agent's reader skips empty lines too.
            columns, *records = filter(None, csv.reader(stream))
        return {"inline": {"columns": columns, "rows": records}}
    if "json_lines" in rows:
        file = Path(rows["json_lines"])
        with _read(file):
            numbered = [(n, line) for n, line in enumerate(lines_of(file), 1) if line.strip()]
        objects = [_object(file, number, line) for number, line in numbered]
        columns = list(objects[0])
        for (number, _), line in zip(numbered, objects, strict=True):
            if missing := [name for name in columns if name not in line]:
                raise UsageError(Problem(f"line {number} has no {missing[0]!r}", "the first line has it", str(file)))
        texts = [[v if isinstance(v := line[name], str) else json.dumps(v) for name in columns] for line in objects]
        return {"inline": {"columns": columns, "rows": texts}}
    return rows


def _object(file: Path, number: int, line: str) -> Json:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(Problem(f"line {number} is not JSON: {error}", "write an object a line", str(file))) from None
    if not isinstance(value, dict):
        raise UsageError(Problem(f"line {number} is not a JSON object", "write an object a line", str(file)))
    return value


@contextlib.contextmanager
def _read(file: str | Path) -> Iterator[None]:
    """UsageError for a file that cannot be read or has the wrong content."""
    try:
        yield
    except OSError as error:
        raise UsageError(Problem(f"{error.strerror}", "check the path and its permissions", str(file))) from None
    except (ValueError, csv.Error) as error:
        raise UsageError(Problem(f"cannot be read: {error}", "write it as UTF-8", str(file))) from None


def _with_contents(part: Any) -> Any:
    """A copy in which files used as bodies or parts of bodies are replaced by their bytes."""
    if isinstance(part, list):
        return [_with_contents(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        key: _INLINED[key](Path(value["file"]))
        if key in _INLINED and isinstance(value, dict) and "file" in value
        else _with_contents(value)
        for key, value in part.items()
    }


def _base64(file: Path) -> str:
    with _read(file):
        return base64.b64encode(file.read_bytes()).decode()


_INLINED: Mapping[str, Callable[[Path], Json]] = {
    "body": lambda file: {"base64": _base64(file)},
    "content": lambda file: {"content": {"file_name": file.name, "base64": _base64(file)}},
}
"""Functions that include a file's content in a program, by the key of the file."""
