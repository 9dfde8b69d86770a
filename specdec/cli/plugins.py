"""`specdec plugins`: what is registered, and whether it can be used."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

from specdec.cli import options as o
from specdec.cli.console import out, print_json
from specdec.errors import SpecdecError


def command(json: o.Json = False) -> None:
    """List drafters, rules and targets: where they come from, and whether they change the text.

    Examples:
      specdec plugins
      specdec plugins --json
    """
    found = collect()
    if json:
        print_json({"plugins": found})
        return
    table = Table("kind", "name", "distribution", "text", "needs", "usable", box=None, pad_edge=False)
    for item in found:
        needs = ", ".join(f"{name} (extra {extra})" for name, extra in item["needs"].items()) or "-"
        usable = "yes" if item["usable"] else f"[red]no[/red]: {escape(item['problem'])}"
        table.add_row(item["kind"], item["name"], item["distribution"], item["text"], needs, usable)
    out.print(table)


def collect() -> list[dict[str, Any]]:
    """One entry for each registered name."""
    from specdec import registry

    groups = (("drafter", registry.DRAFTERS), ("verifier", registry.VERIFIERS), ("target", registry.TARGETS))
    return [_entry(kind, plugin) for kind, group in groups for plugin in registry.plugins(group).values()]


#: What parts of this distribution import beyond its own dependencies, and the extra that brings it.
_NEEDS = {("target", "hf"): {"transformers": "hf"}}


def _entry(kind: str, plugin: Any) -> dict[str, Any]:
    from importlib.util import find_spec

    from specdec import registry

    part, problem = None, None
    try:
        part = registry.load(plugin.group, plugin.name)
    except SpecdecError as error:
        problem = str(error)
    needs = _NEEDS.get((kind, plugin.name), {})
    absent = [name for name in needs if find_spec(name) is None]
    if absent and problem is None:
        problem = f"{absent[0]} is not installed: pip install 'specdec-kit[{needs[absent[0]]}]'"
    lossless = bool(getattr(part, "lossless", True)) if kind == "verifier" else True
    summary = next(iter((getattr(part, "__doc__", None) or "").strip().splitlines()), "")
    return {
        "kind": kind,
        "name": plugin.name,
        "distribution": plugin.distribution,
        "lossless": lossless,
        "text": "unchanged" if lossless else "LOSSY",
        "summary": summary,
        "needs": needs,
        "usable": problem is None,
        "problem": problem,
    }
