"""Commands with commands of their own, such as `partywall guard`."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup


class Group(TyperGroup):
    """Lists each command with the first sentence of its help, whole. Click cuts it after 45 characters."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        made = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, first_sentence(command.help or "")) for name, command in made if command])


def first_sentence(text: str) -> str:
    first, end, _ = " ".join(text.partition("\n\n")[0].split()).partition(". ")
    return first + end.strip()


def group(text: str, kind: type[Group] = Group) -> typer.Typer:
    """An empty group with this help. Without commands for completion: the program has them."""
    return typer.Typer(cls=kind, help=text, no_args_is_help=True, rich_markup_mode=None, add_completion=False)
