"""Reports as tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from specdec.cli.console import out

_LEFT = 2


def show(document: Mapping[str, Any]) -> None:
    """Print the rows of a report, one table for each temperature, and what must be known to read them."""
    for temperature in sorted({run["temperature"] for run in document["runs"]}):
        runs = [run for run in document["runs"] if run["temperature"] == temperature]
        _table(runs, temperature)
    if rates := document["transformers_plain_tokens_per_s"]:
        said = ", ".join(f"{kind} {rate:.1f}" for kind, rate in rates.items())
        out.print(f"transformers' plain generate, tokens/s by kind (the fastest is compared with): {said}")
    if skipped := document["prompts_skipped"]:
        out.print(f"{len(skipped)} prompts left no room for the output and were skipped: {', '.join(skipped[:8])}")
    for message in messages(document["runs"]):
        out.print(message, markup=False, soft_wrap=True)


def messages(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the rows over all prompts say about equality: each note once, each withheld ratio with its reason."""
    found = []
    for run in runs:
        where = f"{run['drafter']}, {run['category']}, temperature {run['temperature']:g}"
        if run["withheld"]:
            found.append(f"no speed-up claimed ({where}): {run['withheld']}")
        elif run["category"] == "all" and run["note"]:
            found.append(f"{where}: {run['note']}{_parted(run)}")
    return found


def _table(runs: Sequence[Mapping[str, Any]], temperature: float) -> None:
    table = Table(title=f"temperature {temperature:g}", title_justify="left", box=None, pad_edge=False)
    heads = ("category", "drafter", "tokens/s", "tau", "x none", "x transformers", "x counterpart", "equal", "looping")
    for i, head in enumerate(heads):
        table.add_column(head, justify="left" if i < _LEFT else "right", no_wrap=i >= _LEFT, overflow="fold")
    for run in runs:
        table.add_row(
            run["category"],
            run["drafter"],
            number(run["tokens_per_s"], 1),
            number(run["tau"]),
            number(run["speedup_vs_none"]),
            number(run["speedup_vs_transformers"]),
            number(run["speedup_vs_counterpart"]),
            equality(run),
            f"{run['looping_share']:.0%}",
        )
    out.print(table)


def number(value: float | None, digits: int = 2) -> str:
    """A number, or a dash."""
    return "-" if value is None else f"{value:.{digits}f}"


def equality(run: Mapping[str, Any]) -> str:
    """Whether tokens were those of plain decoding, in a few words."""
    if run["tokens_equal"] is None:
        return "-"
    if run["tokens_equal"]:
        return "yes"
    parted = f"{run['prompts_diverged']} of {run['prompts']} part"
    return f"LOSSY, {parted}" if not run["lossless"] else parted


def _parted(run: Mapping[str, Any]) -> str:
    first = run["first_divergence"]
    if first is None:
        return ""
    gap = "" if run["largest_gap"] is None else f", gaps up to {run['largest_gap']:.3g} logits"
    return f" ({run['prompts_diverged']} of {run['prompts']} prompts, the first at token {first['position']}{gap})"
