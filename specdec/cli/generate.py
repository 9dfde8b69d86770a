"""`specdec generate`: text from a model, streamed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec.cli import options as o
from specdec.cli.console import loading, note, out, print_json
from specdec.errors import OptionError

if TYPE_CHECKING:
    from specdec.engine import Engine
    from specdec.types import Completion

_SLOTS = 8

Model = Annotated[str, typer.Argument(help='A model folder, a GGUF file, or "smollm2".')]
Prompts = Annotated[list[str], typer.Argument(help='One or more texts; "-" reads stdin.', metavar="PROMPT")]


def command(
    model: Model,
    prompt: Prompts,
    drafter: o.Drafter = None,
    verifier: o.Verifier = "match",
    budget: o.Budget = None,
    policy: o.Policy = "cost",
    dtype: o.Dtype = None,
    device: o.Device = "cpu",
    draft_model: o.DraftModel = None,
    option: o.Extra = None,
    temperature: o.Temperature = 0.0,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    min_p: o.MinP = 0.0,
    seed: o.Seed = None,
    max_tokens: o.MaxTokens = 128,
    min_tokens: o.MinTokens = 0,
    stop: o.Stop = None,
    regex: o.Regex = None,
    json_schema: o.Schema = None,
    logprobs: o.Logprobs = None,
    n: o.Copies = 1,
    chat: o.Chat = None,
    json: o.Json = False,
) -> None:
    """Continue texts with a model. One text is streamed as it comes; the same seed gives the same text.

    Examples:
      specdec generate smollm2 "Name three rivers."
      specdec generate smollm2 "Invent a name." --temperature 0.8 --seed 7 --n 3
      specdec generate smollm2 - --drafter none --max-tokens 200 < letter.txt
      specdec generate ./model "A colour:" --no-chat --regex "(red|green|blue)" --json
      specdec generate smollm2 "Say it twice." --drafter ngram --option ngram.max_match=8
      specdec generate ./large "Hello" --draft-model ./small
    """
    from specdec.params import SamplingParams

    asked = dict(locals())
    names = ("temperature", "top_k", "top_p", "min_p", "seed", "max_tokens", "min_tokens", "regex", "logprobs", "n")
    params = SamplingParams(**{name: asked[name] for name in names}, stop=stop or (), json_schema=_schema(json_schema))
    _answer(asked, params, o.prompt_texts(prompt))


def _answer(asked: dict[str, Any], params: Any, texts: list[str]) -> None:
    from specdec.bench.chat import encode

    drafter = asked["drafter"] or ("draft_model" if asked["draft_model"] else "ngram")
    engine = _engine(asked, drafter, slots=max(1, min(_SLOTS, len(texts) * params.n)))
    tokenizer = engine.codec.source if engine.codec else None
    ids = [encode(tokenizer, text, chat=asked["chat"]) for text in texts]
    if len(ids) == 1 and params.n == 1 and not asked["json"]:
        _report(engine, [_streamed(engine, ids[0], params)])
        return
    done = engine.generate(ids, params)
    if asked["json"]:
        print_json(_document(asked, drafter, engine, texts, done, params.n))
        return
    for i, item in enumerate(done):
        out.print(f"[bold]prompt {i // params.n + 1}, completion {item.index + 1}[/bold]")
        out.print(item.text, markup=False, soft_wrap=True)
        _logprobs(engine, item)
    _report(engine, done)


def _engine(asked: dict[str, Any], drafter: str, *, slots: int) -> Engine:
    drafting, verifying = o.part_options(asked["option"], [drafter], asked["verifier"])
    if "draft_model" in o.parts(drafter) and asked["draft_model"]:
        drafting["draft_model"] = {"model": asked["draft_model"], "dtype": asked["dtype"]} | drafting.get(
            "draft_model", {}
        )
    elif asked["draft_model"]:
        raise OptionError(f"--draft-model was given; drafter {drafter!r} uses none. Use --drafter draft_model.")
    with loading(asked["model"]) as progress:
        from specdec.engine import Engine

        return Engine.load(
            asked["model"],
            drafter,
            asked["verifier"],
            dtype=asked["dtype"],
            device=asked["device"],
            slots=slots,
            progress=progress,
            budget=asked["budget"],
            policy=asked["policy"],
            drafter_options=drafting,
            verifier_options=verifying,
        )


def _streamed(engine: Engine, ids: list[int], params: Any) -> Completion:
    last = None
    for chunk in engine.stream(ids, params):
        typer.echo(chunk.text, nl=False)
        last = chunk.completion or last
    typer.echo()
    if last is None:
        raise OptionError("the request ended before it began. Ask for at least one token.")
    _logprobs(engine, last)
    return last


def _logprobs(engine: Engine, item: Completion) -> None:
    for entry in item.logprobs or ():
        spelled = repr(engine.codec.decode([entry.token])) if engine.codec else str(entry.token)
        best = ", ".join(f"{token}: {value:.3f}" for token, value in entry.top.items())
        typer.echo(f"{spelled}\t{entry.logprob:.4f}\t{best}")


def _report(engine: Engine, done: list[Completion]) -> None:
    """How it went, on stderr."""
    tokens = sum(len(item.tokens) for item in done)
    seconds = max(item.stats.total_ms for item in done) / 1e3
    rounds, emitted = sum(item.stats.rounds for item in done), sum(item.stats.emitted for item in done)
    tau = f", {emitted / rounds:.2f} tokens a round" if rounds else ""
    ends = "/".join(sorted({item.finish_reason for item in done}))
    note(f"{tokens} tokens in {seconds:.2f} s ({tokens / max(seconds, 1e-9):.1f} tokens/s{tau}), ended by {ends}")
    if not engine.lossless:
        note("the rule is lossy: this is not the text the model alone would have written")


def _document(
    asked: dict[str, Any], drafter: str, engine: Engine, texts: list[str], done: list[Completion], copies: int
) -> dict[str, Any]:
    from dataclasses import asdict

    completions = []
    for i, item in enumerate(done):
        entry = asdict(item)
        entry["stats"]["tau"] = item.stats.tau
        completions.append({"prompt": texts[i // copies], **entry})
    return {
        "model": asked["model"],
        "drafter": drafter,
        "verifier": asked["verifier"],
        "lossless": engine.lossless,
        "dtype": str(engine.target.spec.dtype).removeprefix("torch."),
        "completions": completions,
    }


def _schema(text: str | None) -> str | None:
    if text is None or not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except OSError as error:
        raise OptionError(f"--json-schema names a file that cannot be read: {error}.") from error
