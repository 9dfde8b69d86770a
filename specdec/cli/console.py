"""Where output goes: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

_QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error"}

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def fail(message: str) -> None:
    """One red line on stderr."""
    err.print(Text(f"error: {message}", style="red"), soft_wrap=True)


def note(message: str) -> None:
    """One quiet line on stderr."""
    err.print(Text(message, style="dim"), soft_wrap=True)


def print_json(content: Any) -> None:
    """A JSON document on stdout."""
    typer.echo(json.dumps(content, indent=1))


def quiet_libraries() -> None:
    """Keep other libraries' bars and notices off the terminal; called before they are imported."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)


@contextmanager
def loading(what: str) -> Iterator[Callable[[str, float], None]]:
    """A spinner while a model loads; yields what `HFTarget.load` takes as `progress`."""
    quiet_libraries()
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), console=err, transient=True
    ) as bar:
        task = bar.add_task(f"loading {what}", total=None)

        def report(stage: str, share: float) -> None:
            moving = stage == "unpack" and share < 1
            bar.update(task, description=f"{what}: {stage}", total=1.0 if moving else None, completed=share)

        yield report


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar with the time that is left; yields a function of how many are done and how many there are."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=err,
        transient=True,
    ) as bar:
        task = bar.add_task(what, total=None)

        def report(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield report
