"""Kinds of fault that came back after they had been mended: threads that die unseen, and time limits that escape.

A thread whose function may raise has to say so, or somebody has to notice its end. A program with a time limit has to
have a handler for it.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import partywall
from partywall.sandbox import networks

SOURCES = Path(partywall.__file__).parent
THREADS = {
    "agent/client.py:_drain_stderr": "a pipe's end ends it; the thread that reads messages says why the agent ended",
    "blame/measure/victim.py:_count": "however it ends, the output counts as closed, which ends the experiment",
    "consolidate/measure/seeing.py:_run": "what it calls catches every exception, and keeps it for the end",
    "host/waits.py:_look": "it only reads a clock",
    "load/recorder/recording.py:_read": "it ends with the proxy, whose end is noticed",
    "migrate/measure/libvirt_end.py:carry": "libvirt has one sort of error, which is caught",
    "power/machine.py:_run": "a simulated machine, for trying things out; Python prints the error",
    "sandbox/ssh/backend.py:_go_on": "without its messages the agent ends, which is noticed",
    "web/runner.py:_examine": "what it calls catches every exception, and answers with it",
    "web/server.py:doctor": "the page that needs its result calls it again",
}
"""Functions of threads that do not catch every Exception, and who notices their end."""
TIMERS = {"migrate/measure/far_clock.py": "it kills a process", "sandbox/ssh/connection.py": "it kills a process"}
LIMITS = {"guard/measure/ends.py:run": "the function around it"}
"""Code whose callers handle the time limit of a program."""
WIDE = {"Exception", "BaseException"}
EXPIRED = WIDE | {"TimeoutExpired", "SubprocessError"}

Nodes = dict[ast.AST, ast.AST]


def modules() -> Iterator[tuple[str, ast.Module, Nodes]]:
    """Each module with its path, and the parent of each of its nodes."""
    for source in sorted(SOURCES.rglob("*.py")):
        name = str(source.relative_to(SOURCES))
        if not name.startswith("testing/"):
            tree = ast.parse(source.read_text())
            yield name, tree, {below: node for node in ast.walk(tree) for below in ast.iter_child_nodes(node)}


def name_of(node: ast.AST | None) -> str:
    """The last name of an expression."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def caught(node: ast.Try | ast.With) -> set[str]:
    """The names of the exceptions that a statement handles."""
    if isinstance(node, ast.Try):
        types = [handler.type for handler in node.handlers]
    else:
        calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
        types = [each for call in calls if name_of(call.func) == "suppress" for each in call.args]
    each = [inner for outer in types for inner in (outer.elts if isinstance(outer, ast.Tuple) else [outer])]
    return {name_of(one) for one in each}


def is_handled(call: ast.Call, parents: Nodes) -> bool:
    """True if a statement around a call, in its function, handles a time limit."""
    node: ast.AST = call
    while (node := parents.get(node, ast.Module([], []))) and not isinstance(node, ast.FunctionDef | ast.Module):
        if isinstance(node, ast.Try | ast.With) and caught(node) & EXPIRED:
            return True
    return False


def function_of(tree: ast.Module, target: ast.AST | None) -> ast.FunctionDef | None:
    """The function of a module that a thread runs."""
    every = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return next((node for node in every if node.name == name_of(target)), None)


def catches_all(function: ast.FunctionDef) -> bool:
    """True if the body of a function, but for what only prepares, is in a `try` that handles every exception."""
    tries = [node for node in function.body if isinstance(node, ast.Try)]
    return any(caught(node) & WIDE for node in tries)


def test_every_thread_says_why_it_ended_or_somebody_notices():
    found = set()
    for file, tree, _ in modules():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            target = next((word.value for word in call.keywords if word.arg == "target"), None)
            if name_of(call.func) != "Thread" or target is None:
                continue
            function = function_of(tree, target)
            if function is None or not catches_all(function):
                found.add(f"{file}:{name_of(target)}")
    assert found == THREADS.keys()


def test_every_timer_does_one_thing_that_cannot_fail():
    found = {
        file
        for file, tree, _ in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and name_of(node.func) == "Timer"
    }
    assert found == TIMERS.keys()


def test_every_time_limit_of_a_program_is_handled():
    found = {
        f"{file}:{name_of(call.func)}"
        for file, tree, parents in modules()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and name_of(call.func) in ("run", "communicate", "check_output", "check_call", "call")
        and "subprocess" in ast.unparse(call.func) + ("subprocess" if name_of(call.func) == "communicate" else "")
        and any(word.arg == "timeout" for word in call.keywords)
        and not is_handled(call, parents)
    }
    assert found == LIMITS.keys()


def test_what_a_call_in_a_namespace_raises_is_raised_where_it_was_called(monkeypatch):
    monkeypatch.setattr(networks, "_enter", lambda _: None)

    def late():
        raise subprocess.TimeoutExpired("ip", 1)

    with pytest.raises(subprocess.TimeoutExpired):
        networks.in_namespace(Path("/proc/self/ns/net"), late)
