"""A job: one thing to carry out, as a frozen model. Its fields are asked for in the same words everywhere.

The options of a command, the keywords of a Python function, the fields of a web form and the file of a record are all
made from one subclass of `Job`. A field says how it is asked for by an `Option` in its annotation. Pure.
"""

from __future__ import annotations

import keyword
import types
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar, Union, get_args, get_origin

from pydantic import BeforeValidator, Field, ValidationError
from pydantic.fields import FieldInfo

from partywall import units
from partywall.core.document.textfile import TOLD, Document, TextFile
from partywall.errors import Problem, UsageError
from partywall.values import Frozen

if TYPE_CHECKING:
    from partywall.core.report.value import Report


def _duration_ns(value: Any) -> Any:
    """Parses what a person wrote. A number is one of a record, in nanoseconds."""
    return units.parse_duration_ns(value) if isinstance(value, str) else value


Duration = Annotated[int, BeforeValidator(_duration_ns), Field(gt=0)]
"""A length of time in ns, written with a unit, such as 10s."""


def _share(value: float) -> str:
    return f"{100 * value:.3g}%"


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


WRITTEN: Mapping[Any, Callable[[Any], str]] = {_duration_ns: units.format_duration, units.parse_share: _share}
"""What makes the text of a number again, by what parses it."""


@dataclass(frozen=True)
class Option:
    """How a field is asked for. The field's type parses and checks the value.

    flag: such as `--for`; by default, the field's name. example: for a message about a wrong value. metavar: the name
    of a positional argument. keyword: the name of the Python keyword, by default that of the flag. page: the pattern of
    the values that a browser may give; empty if it may give none, because they name files or commands of this host.
    """

    help: str
    flag: str = ""
    example: str = ""
    metavar: str = ""
    keyword: str = ""
    page: str = ".*"


@dataclass(frozen=True)
class Asked:
    """A field of a job as it is asked for. type: the type of one value, as people know it.

    document: the document that the value is; None if it is none. written: makes the text of a number, as a person would
    write it.
    """

    name: str
    option: Option
    type: type
    is_list: bool
    is_required: bool
    default: Any
    document: Document | None = None
    written: Callable[[Any], str] = str

    @property
    def flag(self) -> str:
        """What a command line calls it."""
        return self.option.metavar.removesuffix("...") or self.option.flag or f"--{self.name.replace('_', '-')}"

    @property
    def keyword(self) -> str:
        """What Python calls it."""
        name = self.option.keyword or (self.name if self.option.metavar else self.flag.strip("-").replace("-", "_"))
        return f"{name}_" if keyword.iskeyword(name) else name

    @property
    def is_switch(self) -> bool:
        return self.type is bool

    @property
    def default_text(self) -> str:
        """The default as a person would write it; empty if there is none to show."""
        if self.default in (None, ()) or self.is_switch:
            return ""
        is_number = isinstance(self.default, int | float)
        return self.written(self.default).replace(" ", "") if is_number else str(self.default)


class Job(Frozen):
    """One thing to carry out. The docstring of a subclass is the help of its command.

    verb: the word after the capability's name, if it has several jobs. function: the name of the Python function; by
    default the verb, or `run`, and the capability's name. cannot_resume: why its records cannot be continued, if those
    of other jobs can be. makes_files: whether it needs a folder for temporary files.
    """

    verb: ClassVar[str] = ""
    function: ClassVar[str] = ""
    cannot_resume: ClassVar[str] = ""
    makes_files: ClassVar[bool] = False

    @property
    def subject(self) -> str:
        """What it is about, for the name of its record; empty if the job says enough."""
        return ""

    @property
    def ends(self) -> bool:
        """False if the job goes on until Ctrl-C, which is then its normal end."""
        return True

    @classmethod
    def asked(cls) -> tuple[Asked, ...]:
        """The fields in their order. Those without an `Option` are not asked for."""
        every = ((name, info, _mark(info, Option)) for name, info in cls.model_fields.items())
        return tuple(_asked(name, info, option) for name, info, option in every if option is not None)

    @classmethod
    def parsed(cls, given: Mapping[str, Any], called: Callable[[Asked], str] = lambda each: each.flag) -> Self:
        """The job of what a person gave, by the names of fields. UsageError with every mistake at once.

        called: what a field is called where it was given.
        """
        try:
            return cls.model_validate(dict(given))
        except ValidationError as error:
            asked = {each.name: each for each in cls.asked()}
            raise UsageError(*_problems(error, given, asked, called)) from None

    @classmethod
    def words(cls, given: Mapping[str, Any]) -> list[str]:
        """The arguments of the command that gives the same values."""
        options, positional = [], []
        for asked in cls.asked():
            value = given.get(asked.name)
            values = value if isinstance(value, list | tuple) else [] if value is None else [value]
            if asked.option.metavar:
                positional += list(map(str, values))
            elif asked.is_switch:
                options += [asked.flag] if value else []
            else:
                options += [f"{asked.flag}={each}" for each in values]
        return [*options, *(["--", *positional] if positional else [])]


class Action(Job):
    """A job that measures nothing: it reads or changes something at once, and leaves no record.

    A capability lists those that go with it (`Capability.actions`). Each is a command.
    """

    @abstractmethod
    def act(self, host: Callable[[], Any]) -> Report:
        """Does it, and returns what is said of it. host: gives this host, which takes a moment."""


class Following(Action):
    """An action that first shows what goes on, again and again, until that ends. doing: what it does, for people."""

    doing: ClassVar[str] = "watching"

    @abstractmethod
    def follow(self) -> Iterator[Report]:
        """What is to be seen now, and then each time that some of it may have changed."""


J = TypeVar("J", bound=Job)
M = TypeVar("M")


def _mark(info: FieldInfo, kind: type[M]) -> M | None:
    """What is said of a field in its annotation."""
    return next((mark for mark in info.metadata if isinstance(mark, kind)), None)


def _asked(name: str, info: FieldInfo, option: Option) -> Asked:
    inside: Any = info.annotation
    is_list, marks = False, list(info.metadata)
    while get_origin(inside) in (Union, types.UnionType, tuple, Annotated):
        is_list = is_list or get_origin(inside) is tuple
        marks += getattr(inside, "__metadata__", ())
        inside = next(part for part in get_args(inside) if part is not type(None))
    parsers = [mark.func for mark in marks if isinstance(mark, BeforeValidator)]
    written = next((WRITTEN[parser] for parser in parsers if parser in WRITTEN), _number)
    type_: Any = str if parsers or inside not in (int, float, bool) else inside
    default = None if info.is_required() else info.default
    document = _mark(info, Document)
    if isinstance(inside, type) and issubclass(inside, TextFile):
        document = Document(inside.MODEL, inside.model_validate, edited=True)
    return Asked(name, option, type_, is_list, info.is_required(), default, document, written)


def _problems(
    error: ValidationError, given: Mapping[str, Any], asked: Mapping[str, Asked], called: Callable[[Asked], str]
) -> Iterator[Problem]:
    for each in error.errors(include_url=False):
        field = asked.get(str(each["loc"][0])) if each["loc"] else None
        if field is None:
            yield Problem(str(each.get("ctx", {}).get("error", each["msg"])), key=".".join(map(str, each["loc"])))
            continue
        if each["type"] == TOLD:
            yield from each["ctx"]["problems"]
            continue
        value = given.get(field.name)
        number = next((part for part in each["loc"][1:] if isinstance(part, int)), None)
        value = value[number] if number is not None and isinstance(value, list | tuple) else value
        remedy = f"give for example {field.option.example}" if field.option.example else ""
        said = _said(each, value, field.written)
        # What a parser says names a remedy itself.
        yield Problem(said, "" if each["type"] == "value_error" else remedy, key=called(field))


def _said(error: Any, value: Any, written: Callable[[Any], str]) -> str:  # noqa: PLR0911 - one for each mistake
    """A mistake as a sentence that follows the name of its option. written: makes the text of a bound."""
    bounds = error.get("ctx", {})
    match error["type"]:
        case "missing":
            return "is missing"
        case "greater_than":
            return f"must be greater than {bounds['gt']:g}, not {value}"
        case "greater_than_equal":
            return f"must be at least {written(bounds['ge'])}, not {value}"
        case "less_than":
            return f"must be less than {written(bounds['lt'])}, not {value}"
        case "less_than_equal":
            return f"must be at most {written(bounds['le'])}, not {value}"
        case "int_parsing" | "int_type" | "int_from_float":
            return f"must be a whole number, not {value!r}"
        case "float_parsing" | "float_type":
            return f"must be a number, not {value!r}"
        case "literal_error":
            return f"must be {bounds['expected'].replace(chr(39), '')}, not {value!r}"
        case "value_error":
            return str(bounds["error"])
        case _:
            return f"cannot be {value!r}: {error['msg']}"
