"""The application: its commands, and what becomes of errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import specdec
from specdec.cli import bench, demo, doctor, generate, plugins
from specdec.cli.console import fail
from specdec.config import env
from specdec.errors import SpecdecError

_INTERRUPTED = 130
_VERBATIM = "\b"  # keeps the lines of the paragraph it starts


class Guarded(TyperGroup):
    """Prints errors raised on purpose as one line, without a traceback; SPECDEC_DEBUG=1 shows it."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; exit codes are 2 for an error and 130 for an interruption."""
        try:
            return super().invoke(ctx)
        except SpecdecError as error:
            if env("DEBUG"):
                raise
            fail(str(error))
            raise typer.Exit(2) from error
        except KeyboardInterrupt as error:
            fail("interrupted")
            raise typer.Exit(_INTERRUPTED) from error


def _help(command: Callable[..., None]) -> str:
    """A command's docstring: paragraphs to be wrapped, examples to be left line by line."""
    text, _, examples = inspect.cleandoc(command.__doc__ or "").partition("Examples:")
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    return "\n\n".join([*paragraphs, _VERBATIM + "\nExamples:" + examples])


app = typer.Typer(
    cls=Guarded,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (demo, generate, bench, plugins, doctor):
    app.command(module.__name__.rpartition(".")[2], help=_help(module.command))(module.command)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(specdec.__version__)
        raise typer.Exit


def entry(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """A language model's output sooner, and unchanged: a draft changes when a token comes, never which token comes.

    Examples:
      specdec demo                           what drafting brings
      specdec generate smollm2 "Say hello."  text, streamed
      specdec doctor                         what works on this machine
    """


app.callback(help=_help(entry))(entry)
