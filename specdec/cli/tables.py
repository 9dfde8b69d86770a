"""Reports as tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.markup import escape
from rich.table import Table

from specdec.cli.console import out

Runs = Sequence[Mapping[str, Any]]
_HEADS = ("tokens/s", "tau", "x none", "x trans-\nformers", "x counter-\npart", "equal")
_NAMES = {"transformers:prompt_lookup": "transformers look-up", "transformers:assisted": "transformers assisted"}


def show(document: Mapping[str, Any]) -> None:
    """Print the rows of a report, one table for each temperature, and what must be known to read them."""
    for temperature in sorted({run["temperature"] for run in document["runs"]}):
        runs = [run for run in document["runs"] if run["temperature"] == temperature]
        out.print(table(runs, f"temperature {temperature:g}"))
    for line in remarks(document):
        out.print(line, markup=False, soft_wrap=True)


def table(runs: Runs, title: str) -> Table:
    """The rows of one temperature, by category; columns without a value are left out."""
    grid = Table(title=title, title_justify="left", box=None, pad_edge=False)
    grid.add_column("", overflow="fold")
    cells = [_cells(run) for run in runs]
    filled = [i for i in range(len(_HEADS)) if any(row[i] != "-" for row in cells)]
    for i in filled:
        grid.add_column(_HEADS[i], justify="right", no_wrap=True)
    for category, group in groupby(zip(runs, cells, strict=True), key=lambda item: str(item[0]["category"])):
        for at, (run, row) in enumerate(group):
            if at == 0:
                share = run["looping_share"]
                loops = "" if not share else ", looping" if share == 1 else f", {share:.0%} looping"
                grid.add_row(f"[bold]{escape(category)}[/bold] ({run['prompts']}{loops})")
            grid.add_row("  " + escape(_name(str(run["drafter"]))), *(row[i] for i in filled))
    return grid


def remarks(document: Mapping[str, Any]) -> list[str]:
    """What must be known to read the tables of a report."""
    found = []
    if any(run["tokens_per_s"] is None for run in document["runs"]):
        found.append("(tokens/s): every output there repeats itself, which flatters look-up; no ratio is given.")
    if rates := document["transformers_plain_tokens_per_s"]:
        said = ", ".join(f"{kind} {rate:.1f}" for kind, rate in rates.items())
        found.append(f"transformers is its fastest plain kind here (tokens/s: {said}).")
    if skipped := document["prompts_skipped"]:
        found.append(f"{len(skipped)} prompts left no room for the output and were skipped: {', '.join(skipped[:8])}")
    return found + messages(document["runs"])


def messages(runs: Runs) -> list[str]:
    """What the rows over all prompts say about equality, and every ratio that is withheld, with its reason."""
    found = []
    for run in runs:
        where = f"{run['drafter']}, {run['category']}, temperature {run['temperature']:g}"
        if run["withheld"]:
            found.append(f"no speed-up claimed ({where}): {run['withheld']}")
        elif run["category"] == "all" and run["note"]:
            found.append(f"{where}: {run['note']}{_parted(run)}")
    return found


def _cells(run: Mapping[str, Any]) -> list[str]:
    """The cells of a row, in the order of `_HEADS`."""
    rate = _number(run["tokens_per_s"], 1)
    if run["tokens_per_s"] is None and run["tokens_per_s_all"] is not None:
        rate = f"({run['tokens_per_s_all']:.1f})"
    ratios = (run[f"speedup_vs_{other}"] for other in ("none", "transformers", "counterpart"))
    return [rate, _number(run["tau"]), *(_number(ratio) for ratio in ratios), _equality(run)]


def _name(drafter: str) -> str:
    return _NAMES.get(drafter, drafter)


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _equality(run: Mapping[str, Any]) -> str:
    """Whether tokens were those of plain decoding, in a few words."""
    if run["tokens_equal"] is None:
        return "-"
    if run["tokens_equal"]:
        return "yes"
    parted = f"{run['prompts_diverged']}/{run['prompts']} part"
    return f"LOSSY, {parted}" if not run["lossless"] else parted


def _parted(run: Mapping[str, Any]) -> str:
    first = run["first_divergence"]
    if first is None:
        return ""
    gap = "" if run["largest_gap"] is None else f", gaps up to {run['largest_gap']:.3g} logits"
    return f" ({run['prompts_diverged']} of {run['prompts']} prompts, the first at token {first['position']}{gap})"
