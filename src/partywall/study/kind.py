"""The interface of every kind of study, and checks that several kinds share."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypedDict, TypeVar

from partywall.agent.memory_check import Checks
from partywall.core import here
from partywall.core.capability import Outline
from partywall.errors import CapabilityError, Problem, UsageError
from partywall.events import Emit, Note
from partywall.host import Host
from partywall.run.document.scenario import PASSING_BYTES, Scenario
from partywall.sandbox import lab, qemu
from partywall.study import papers
from partywall.study.document import Length, StudyReport, StudyRequest
from partywall.study.paper import Place
from partywall.study.record import StudyDirectory
from partywall.values import Frozen

S = TypeVar("S")
F = TypeVar("F")
F_co = TypeVar("F_co", covariant=True)
B = TypeVar("B", bound=Frozen)


class Kind(Protocol[S]):
    """How studies of one kind are read, carried out and reported. key: the first key of their files."""

    @property
    def key(self) -> str: ...

    def read(self, content: bytes, file: str) -> S:
        """The checked study. Raises UsageError with all mistakes in it."""
        ...

    def scenarios(self, study: S, request: StudyRequest, host: Host) -> Sequence[Scenario]:
        """The scenarios that its parts are, whose sandboxes may be on other machines; empty if it has none.

        host: with the facts of these machines, or without while they are not known. UsageError for requests that this
        study does not support.
        """
        ...

    def outline(self, study: S, request: StudyRequest, host: Host) -> Outline:
        """What would be measured on a host. Raises UsageError for options that this study does not support."""
        ...

    def check(self, study: S, request: StudyRequest, host: Host, work_root: Path, *, allow_commands: bool) -> None:
        """Raises CapabilityError for what the host lacks, before anything is created.

        UsageError if the study contains a user's commands and they are not allowed.
        """
        ...

    def measure(self, study: S, directory: StudyDirectory, host: Host, work_root: Path, emit: Emit) -> None:
        """Measures what is not yet in the directory. Nothing of it is left on the host, even after an error."""
        ...

    def places(self, study: S, request: StudyRequest, host: Host) -> Mapping[str, frozenset[Place]]:
        """The points that the study measures on a host that lacks nothing, by table or figure of the paper."""
        ...

    def report(self, study: S, directory: StudyDirectory) -> StudyReport:
        """The findings, from the directory alone. Raises TrialError if there are none yet."""
        ...


class Forms(Protocol[F_co]):
    """A study with a form of each length."""

    @property
    def short(self) -> F_co: ...

    @property
    def long(self) -> F_co: ...


class Named(Protocol):
    """A study of any kind."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...


class Heading(TypedDict):
    """The fields of a `StudyReport` that every kind fills in the same way."""

    run: str
    name: str
    description: str
    length: Length
    host: Mapping[str, Any]


def heading(study: Named, directory: StudyDirectory) -> Heading:
    """What a study's file and directory say of its report."""
    return {
        "run": directory.name,
        "name": study.name,
        "description": study.description,
        "length": directory.request.length,
        "host": directory.about.get("host", {}),
    }


class OnThisHost:
    """Of kinds whose studies create what they measure, so that they run on the measured host itself."""

    def scenarios(self, study: Any, request: StudyRequest, host: Host) -> tuple[Scenario, ...]:
        del host
        refuse_on(study.name, request)
        refuse_machines(study.name, request)
        return ()


class InLab(OnThisHost):
    """Of kinds whose tenants are in a lab on this host."""

    def check(self, study: Any, request: StudyRequest, host: Host, work_root: Path, *, allow_commands: bool) -> None:
        del work_root, allow_commands
        papers.load(study.name)
        check_lab(host, request)


def refuse_on(name: str, request: StudyRequest) -> None:
    """UsageError if another machine is to be measured by a study that measures its own host."""
    if request.on:
        message = f"{name} makes what it measures on the host that it is started on"
        remedy = f"install Partywall on {request.on} and start it there; 'partywall compare' takes a copy of its folder"
        raise UsageError(Problem(message, remedy, key="--on"))


def refuse_machines(name: str, request: StudyRequest) -> None:
    """UsageError if machines for generators are named to a study without generators."""
    if request.machines is not None:
        message = f"{name} has no load generators to place on other machines"
        raise UsageError(Problem(message, "leave it out", key="--machine"))


def machines_in_words(facts: Mapping[str, Any]) -> list[str]:
    """The other machines of a study, each with its CPUs and kernel. facts: of this host, with theirs if known."""
    return [f"{name}: {here.in_words(known)}" for name, known in facts.get("machines", {}).items()]


GUESTS = "qemu"
"""The backend for tenants of a lab in virtual machines. Without a backend they are network namespaces."""


def check_lab(host: Host, request: StudyRequest) -> None:
    """CapabilityError if this host cannot have a lab of such tenants, with hooks on their interfaces."""
    if why := lab.lacking():
        raise CapabilityError(why)
    here.check_programs(host)
    here.check_hooks("the study")
    if request.backends and (why := qemu.lacking(host)):
        raise CapabilityError(why)


def memory_checks(directory: StudyDirectory, emit: Emit) -> Checks:
    """The memory checks of a study, which keeps their outcomes."""
    return Checks(emit, directory.request.memory_wait_ns, directory.append_memory_check)


BOTH_ENDS = 2
"""A guest that moves has its memory at the source and at the destination."""


def guests_bytes(memory: int, guests: int) -> int:
    """Bytes of the host that so many guests with this memory need, QEMU's own included."""
    return guests * (memory + PASSING_BYTES)


@dataclass(frozen=True)
class TenantsMemory:
    """The memory that a lab's tenants need. bytes: of all senders and what goes with them; what: the same in words."""

    bytes: int
    what: str
    checks: Checks

    def require(self, guests: int = 0) -> None:
        """CapabilityError if the host lacks memory for the senders and for this number of guests."""
        here.check_free_memory(self.bytes + guests * lab.GUEST_BYTES, self.what, self.checks)

    def inspect(self, made: lab.Lab) -> None:
        """Touches and times each guest's share of the senders' memory inside it. Namespaces use the host's."""
        for name, guest in made.guests.items():
            if guest.client is not None:
                self.checks.inspect(guest.client, self.bytes // len(made.names), self.what, name)


def accelerator(
    directory: StudyDirectory, host: Host, emulated: Iterable[bool], scaled: str, emit: Emit
) -> qemu.Accelerator | None:
    """The accelerator of tenants that are guests; None if they are namespaces. Emits a note if it emulates.

    emulated: whether it did, for each observation so far; scaled: see `emulation_note`. UsageError if guests had
    another accelerator before.
    """
    if not directory.request.backends:
        return None
    chosen = qemu.choose("auto", host)
    if any(before != chosen.emulates for before in emulated):
        said = "was started with another accelerator than guests get now, so its slots cannot be compared"
        raise UsageError(Problem(f"{directory.path} {said}", "begin a new study", key="--resume"))
    if chosen.emulates:
        emit(Note(f"guests are emulated (tcg): {chosen.why}; {emulation_note(scaled)}"))
    return chosen


def emulation_note(scaled: str) -> str:
    """A note for people. scaled: which rates are scaled for emulated guests, and by how much."""
    return f"tenants are guests whose processor is emulated, which send less than the paper's: {scaled}"


def tenants_text(request: StudyRequest) -> str:
    """What the tenants of a lab are, for people."""
    return "guests, each behind a tap" if request.backends else "network namespaces"


def refuse_other_backends(name: str, request: StudyRequest) -> None:
    """UsageError if a backend is requested that tenants of a lab cannot have."""
    if unknown := [backend for backend in request.backends if backend != GUESTS]:
        remedy = f"leave it out for network namespaces, or give {GUESTS} for guests, each behind a tap"
        raise UsageError(Problem(f"{name} does not support backend {unknown[0]}", remedy, key="--backend"))


def refuse_backends(name: str, request: StudyRequest) -> None:
    """UsageError if backends are requested of a study whose parts have none to choose."""
    if request.backends:
        raise UsageError(Problem(f"{name} does not support backends", "leave it out", key="--backend"))


def refuse_parts(name: str, request: StudyRequest) -> None:
    """UsageError if parts are requested of a study without parts."""
    if request.parts:
        raise UsageError(Problem(f"{name} has no parts", "leave it out", key="--only"))


def requested(request: StudyRequest, *names: str) -> bool:
    """True if the request has no patterns, or one that fits one of a part's names."""
    return not request.parts or any(fnmatch.fnmatch(name, pattern) for pattern in request.parts for name in names)


def no_such_part(request: StudyRequest, parts: Iterable[str]) -> UsageError:
    """The error if the requested parts do not exist. parts: those of the study."""
    remedy = f"there are {', '.join(parts)}"
    return UsageError(Problem(f"no part is called {' or '.join(request.parts)}", remedy, key="--only"))


def form_of(name: str, forms: Mapping[Length, F], request: StudyRequest) -> F:
    """The form of the requested length. UsageError if the study has none."""
    if request.length not in forms:
        raise UsageError(Problem(f"{name} has no {request.length} form", f"give {' or '.join(forms)}", key="--form"))
    return forms[request.length]


def in_blocks(study: Forms[B], request: StudyRequest) -> B:
    """The form of the requested length, with the requested number of blocks."""
    form = form_of("this study", {"short": study.short, "long": study.long}, request)
    return form if request.rounds is None else form.model_copy(update={"blocks": request.rounds})
