"""`specdec bench`: drafters against plain decoding and against transformers, on prompts from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from specdec.cli import options as o
from specdec.cli.console import counting, loading, note, print_json
from specdec.errors import OptionError

Model = Annotated[str, typer.Argument(help='A model folder, a GGUF file, or "smollm2".')]
Prompts = Annotated[Path, typer.Option(help="JSONL, gzipped or not: Spec-Bench, MT-Bench, HumanEval, or {prompt}.")]
Drafters = Annotated[str, typer.Option(help="Names with commas between them; none is always measured.")]
Repeat = Annotated[int, typer.Option(help="Runs of each prompt; medians count.", min=1)]
Temperatures = Annotated[str, typer.Option(help="Numbers with commas between them.")]
OneTemperature = Annotated[float | None, typer.Option("--temperature", help="One temperature instead.")]
Seed = Annotated[int, typer.Option(help="Seed of the runs above temperature 0.")]
Against = Annotated[str | None, typer.Option(help='"transformers": its generate, plain and its own way to draft.')]
Limit = Annotated[int | None, typer.Option(help="Prompts of each category at most.", min=1)]
Categories = Annotated[str, typer.Option(help="Only these, with commas between them.")]
Threads = Annotated[int | None, typer.Option(help="Threads of torch.", min=1)]
Raw = Annotated[bool, typer.Option("--raw", help="Do not use the chat template.")]
Out = Annotated[Path | None, typer.Option("--json", help='Where the report goes; "-" is stdout.', metavar="OUT")]
Plot = Annotated[Path | None, typer.Option(help="Where a picture goes (needs matplotlib).", metavar="OUT.png")]


def command(
    model: Model,
    prompts: Prompts,
    drafters: Drafters = "none,ngram",
    verifier: o.Verifier = "match",
    budget: o.Budget = None,
    policy: o.Policy = "cost",
    dtype: o.Dtype = None,
    device: o.Device = "cpu",
    draft_model: o.DraftModel = None,
    option: o.Extra = None,
    max_tokens: o.MaxTokens = 128,
    repeat: Repeat = 3,
    temperatures: Temperatures = "0,0.7",
    temperature: OneTemperature = None,
    seed: Seed = 0,
    against: Against = None,
    limit: Limit = None,
    categories: Categories = "",
    threads: Threads = None,
    raw: Raw = False,
    json: Out = None,
    plot: Plot = None,
) -> None:
    """Time drafters on the same prompts, interleaved; a speed-up is shown only where the tokens were compared.

    Prompts whose output repeats itself are counted ("looping") and left out of rates and ratios. With --json an
    interrupted run goes on where it was when the same command is given again.

    Examples:
      specdec bench smollm2 --prompts question.jsonl --limit 2 --json report.json
      specdec bench smollm2 --prompts HumanEval.jsonl.gz --limit 20 --against transformers --dtype bf16
      specdec bench ./large --prompts p.jsonl --drafters ngram,draft_model --draft-model ./small --plot bars.png
    """
    asked = dict(locals())
    asked["temperatures"] = o.numbers(temperatures, "--temperatures") if temperature is None else [temperature]
    _check(asked)
    _run(asked)


def _check(asked: dict[str, Any]) -> None:
    """Refuse what cannot be measured before anything is loaded."""
    from specdec.params import SamplingParams

    if asked["max_tokens"] < 1:
        raise OptionError(f"--max-tokens is at least 1; found {asked['max_tokens']}.")
    for value in asked["temperatures"]:
        SamplingParams(temperature=value, seed=asked["seed"])
    if asked["plot"] is not None:
        from importlib.util import find_spec

        from specdec.errors import missing_extra

        if find_spec("matplotlib") is None:
            raise missing_extra("matplotlib", "bench", "--plot")


def _run(asked: dict[str, Any]) -> None:
    from specdec.bench.document import document, write
    from specdec.bench.job import assemble
    from specdec.bench.measure import Plan, measure
    from specdec.bench.prompts import read_prompts
    from specdec.bench.store import Store, partial_path

    chosen = read_prompts(asked["prompts"], limit=asked["limit"], categories=o.listed(asked["categories"]))
    setup = _setup(asked)
    with loading(asked["model"]) as progress:
        job = assemble(setup, chosen, max_tokens=asked["max_tokens"], progress=progress)
    plan = Plan(
        prompts=job.ids,
        max_tokens=asked["max_tokens"],
        temperatures=asked["temperatures"],
        repeats=asked["repeat"],
        seed=asked["seed"],
    )
    settings = _settings(asked, [prompt.text for prompt in chosen])
    target = asked["json"] if asked["json"] not in (None, Path("-")) else None
    store = Store(partial_path(target) if target else None, settings)
    if store.resumed:
        note(f"{store.resumed} runs were measured before and are kept")
    with counting("measuring") as report:
        measure(plan, job.runners, store, report)
    content = document(job, plan, store, settings)
    if target:
        write(target, content)
        store.discard()
    _show(asked, content)


def _show(asked: dict[str, Any], content: dict[str, Any]) -> None:
    from specdec.cli.tables import show

    if asked["json"] == Path("-"):
        print_json(content)
    else:
        show(content)
    if asked["plot"] is not None:
        from specdec.bench.plot import plot

        plot(content["runs"], asked["plot"], title=Path(asked["model"]).name)


def _setup(asked: dict[str, Any]) -> Any:
    from specdec.bench.job import Setup

    drafters = o.listed(asked["drafters"])
    drafting, verifying = o.part_options(asked["option"], drafters, asked["verifier"])
    same = ("model", "verifier", "dtype", "device", "budget", "policy", "against", "draft_model", "threads")
    return Setup(
        **{name: asked[name] for name in same},
        drafters=drafters,
        chat=False if asked["raw"] else None,
        drafter_options=drafting,
        verifier_options=verifying,
    )


def _settings(asked: dict[str, Any], texts: list[str]) -> dict[str, Any]:
    """What a measurement depends on; two runs with the same settings can be put together."""
    from specdec.bench.document import digest
    from specdec.bench.machine import versions

    left_out = ("json", "plot", "temperature", "prompts")
    kept = {name: value for name, value in asked.items() if name not in left_out}
    return kept | {"prompts": asked["prompts"].name, "prompts_digest": digest(texts), "versions": versions()}
