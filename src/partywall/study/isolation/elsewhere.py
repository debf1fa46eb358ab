"""The machines of a study's sandboxes: the one that a request names, and those that the study's file names. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from partywall.errors import Problem, UsageError
from partywall.sandbox.addresses import check_ssh_host
from partywall.study.document import StudyRequest

BACKEND = "ssh"
"""The backend of a sandbox on a machine that is named by a request."""
REPLACED = (None, "process", BACKEND)
"""Backends of a file that are processes on the machine that is named by a request."""
ADDRESSES = ("host", "uri", "domain")


def check_request(request: StudyRequest) -> None:
    """UsageError, with all problems at once, if the study cannot be measured on the machine that is requested."""
    if BACKEND in request.backends and not request.on:
        raise UsageError(Problem("the ssh backend needs to know which machine", "add --on user@name", key="--backend"))
    if not request.on:
        return
    if "://" in request.on and not request.on.startswith("ssh://"):
        remedy = "name a machine for ssh; a study file can name a uri: sandbox: {backend: libvirt, uri: …, boot: …}"
        raise UsageError(Problem(f"{request.on[:200]} is not a host for ssh", remedy, key="--on"))
    check_ssh_host(request.on, "--on")
    others = [backend for backend in dict.fromkeys(request.backends) if backend != BACKEND]
    if others:
        raise UsageError(*(Problem(_cannot(each, request.on), _remedy(request.on), key="--backend") for each in others))


def _cannot(backend: str, machine: str) -> str:
    return f"{backend} makes sandboxes on this host alone; on {machine} they are processes, started by ssh"


def _remedy(machine: str) -> str:
    return f"leave it out, or start the study on {machine} itself"


def explained(problem: Problem, request: StudyRequest) -> Problem:
    """A problem of a part. What processes on a requested machine cannot do has the remedy that fits there."""
    if request.on and f"the {BACKEND} backend cannot" in problem.message:
        return replace(problem, remedy=f"leave the part out with --only, or start the study on {request.on} itself")
    return problem


def names_backend(scenario: Mapping[str, Any]) -> bool:
    """True if the sandboxes of a part cannot all have the same backend, because one names its own machine."""
    return any(_is_placed(box) for _, _, box in _boxes(scenario))


def names_all_backends(scenario: Mapping[str, Any]) -> bool:
    """True if every sandbox of a part names its backend."""
    return all("backend" in box for _, _, box in _boxes(scenario))


def placed(scenario: Mapping[str, Any], request: StudyRequest, backend: str) -> Mapping[str, Any]:
    """A part's scenario, with the machine of each sandbox.

    backend: of the sandboxes that name none, or empty if it is a factor. UsageError for sandboxes that cannot be on
    the requested machine.
    """
    made = {key: dict(group) if isinstance(group, dict) else group for key, group in scenario.items()}
    problems = []
    for kind, name, box in _boxes(scenario):
        filled = {"backend": backend, **box} if backend else dict(box)
        if request.on and not any(key in box for key in ADDRESSES):
            filled |= {"backend": BACKEND, "host": request.on}
            if (own := box.get("backend")) not in REPLACED:
                at = f"{kind}.{name}.sandbox.backend"
                problems.append(Problem(_cannot(str(own), request.on), _remedy(request.on), key=at))
        if filled:
            made[kind][name] = {**made[kind][name], "sandbox": filled}
    if problems:
        raise UsageError(*problems)
    return made


def _is_placed(box: Mapping[str, Any]) -> bool:
    return "backend" in box and any(key in box for key in ADDRESSES)


def _boxes(scenario: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """(kind, name, sandbox) of every workload that has the right form. Other mistakes are found in the scenario."""
    for kind in ("victims", "aggressors"):
        group = scenario.get(kind)
        for name, workload in group.items() if isinstance(group, dict) else ():
            box = workload.get("sandbox", {}) if isinstance(workload, dict) else None
            if isinstance(box, dict):
                yield kind, name, box
