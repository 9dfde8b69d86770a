"""Token equality on a real model in float32, as JSON.

Greedy: every drafter, alone and in batches of four, against transformers' own generate(). At a temperature, with a
seed: every drafter, budget and batch against plain decoding here. A difference is reported with the gap between the
two best logits where it happened.

    python benchmarks/equality.py --prompts question.jsonl --count 40 --tokens 128 --json out.json

Finished cases are kept beside the output, so an interrupted run goes on where it stopped; with --only, several
processes share the cases, and the one that finds all of them done writes the output.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from specdec_drafters.draft_model import DraftModel
from specdec_drafters.ngram import Ngram

from specdec import Drafter, Engine, HFTarget
from specdec.bench.chat import encode
from specdec.bench.machine import command, machine, versions
from specdec.bench.prompts import Prompt, read_prompts
from specdec.hf.load import load_model, resolve
from specdec.testing import RandomTree

BATCHES, BUDGETS = (1, 4), (1, 2, 5, 9)
DRAFTERS = ("none", "ngram", "draft_model", "random tree")
REFERENCE, PLAIN = "transformers", "none, sampled, batch 1"
Ids = list[list[int]]


@dataclass(frozen=True)
class Case:
    """One way to decode the prompts; `against` names the case whose tokens it has to equal."""

    name: str
    against: str | None
    run: Callable[[], Ids]
    facts: dict[str, Any]


def main() -> None:
    options = parsed()
    torch.set_num_threads(options.threads)
    prompts = spread(read_prompts(options.prompts), options.count)
    target = HFTarget.load(options.model, dtype="fp32", slots=4, max_len=options.max_len)
    ids = [encode(target.tokenizer, prompt.text) for prompt in prompts]
    store = Store(options.json.with_suffix(".partial.jsonl"))
    wanted = cases(options, target, ids)
    for case in wanted:
        if case.name.split(",")[0] in options.only and case.name not in store.read():
            start = time.perf_counter()
            tokens = case.run()
            store.add(case.name, tokens, time.perf_counter() - start)
    done = store.read()
    if any(case.name not in done for case in wanted):
        return
    options.json.write_text(json.dumps(document(options, prompts, target, ids, wanted, done), indent=1) + "\n")
    store.path.unlink()


def parsed() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--sampled", type=int, default=4, help="prompts of the runs at a temperature")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--max-len", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=(REFERENCE, *DRAFTERS), choices=(REFERENCE, *DRAFTERS))
    parser.add_argument("--json", type=Path, required=True)
    return parser.parse_args()


class Store:
    """Finished cases, a JSON line each; safe for several writers."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, dict[str, Any]]:
        """Cases by name."""
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        return {case["name"]: case for case in map(json.loads, lines)}

    def add(self, name: str, tokens: Ids, seconds: float) -> None:
        """Append one case."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": name, "tokens": tokens, "seconds": round(seconds, 1)}) + "\n")


def spread(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """`count` prompts at even distances, so that every category has its share."""
    step = max(1, len(prompts) // count)
    return list(prompts[::step][:count])


def cases(options: Any, target: HFTarget, ids: Ids) -> list[Case]:
    """Every case, the references first."""
    return [
        Case(REFERENCE, None, lambda: reference(ids, options), {}),
        *greedy(options, target, ids),
        *sampled(options, target, ids[: options.sampled]),
    ]


def greedy(options: Any, target: HFTarget, ids: Ids) -> Iterator[Case]:
    for name in DRAFTERS:
        for batch in BATCHES:
            title = f"{name}, greedy, batch {batch}"

            def run(name: str = name, batch: int = batch, title: str = title) -> Ids:
                engine = Engine(target, drafter(name, options), budget=5)
                return decode(engine, ids, batch, title, max_tokens=options.tokens)

            yield Case(title, REFERENCE, run, {"drafter": name, "batch": batch, "temperature": 0.0})


def sampled(options: Any, target: HFTarget, ids: Ids) -> Iterator[Case]:
    params = {"max_tokens": options.tokens // 2, "temperature": options.temperature, "seed": 7}
    for name in DRAFTERS:
        for budget in (None,) if name == "none" else BUDGETS:
            for batch in BATCHES:
                title = f"{name}, sampled, {'' if budget is None else f'budget {budget}, '}batch {batch}"

                def run(name: str = name, budget: int | None = budget, batch: int = batch, title: str = title) -> Ids:
                    engine = Engine(target, drafter(name, options), budget=budget)
                    return decode(engine, ids, batch, title, **params)

                facts = {"drafter": name, "budget": budget, "batch": batch, "temperature": options.temperature}
                yield Case(title, None if title == PLAIN else PLAIN, run, facts)


def drafter(name: str, options: Any) -> str | Drafter:
    """A fresh drafter; the draft model is the target itself in bfloat16, which is nearly always right."""
    if name == "draft_model":
        return DraftModel(HFTarget.load(options.model, dtype="bf16", slots=4, max_len=options.max_len))
    return {"none": "none", "ngram": Ngram(), "random tree": RandomTree()}[name]


def reference(ids: Ids, options: Any) -> Ids:
    """What transformers' generate() gives."""
    model, _ = load_model(resolve(options.model), torch.float32, torch.device("cpu"))
    out = []
    for prompt in tracked(ids, REFERENCE):
        given = torch.tensor([prompt])
        tokens = model.generate(
            given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=options.tokens
        )
        out.append(tokens[0, len(prompt) :].tolist())
    return out


def decode(engine: Engine, ids: Ids, batch: int, title: str, **params: Any) -> Ids:
    out: Ids = []
    for at in tracked(range(0, len(ids), batch), title):
        out += [answer.tokens for answer in engine.generate(ids[at : at + batch], **params)]
    return out


def tracked(items: Sequence[Any], title: str) -> Any:
    return track(items, description=title, console=Console(stderr=True))


def document(
    options: Any,
    prompts: list[Prompt],
    target: HFTarget,
    ids: Ids,
    wanted: list[Case],
    done: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    compared = [
        {**case.facts, "against": case.against, "seconds": done[case.name]["seconds"], **differences}
        for case in wanted
        if case.against is not None
        for differences in [compare(target, ids, done[case.name]["tokens"], done[case.against]["tokens"])]
    ]
    return {
        "command": command(),
        "versions": versions(),
        "machine": machine(),
        "model": options.model,
        "dtype": "fp32",
        "prompts": [prompt.id for prompt in prompts],
        "max_tokens": options.tokens,
        "tokens_equal": all(case["tokens_equal"] for case in compared),
        "cases": compared,
    }


def compare(target: HFTarget, ids: Ids, got: Ids, want: Ids) -> dict[str, Any]:
    differing = [
        {"prompt": i, **difference(target, prompt, mine, theirs)}
        for i, (prompt, mine, theirs) in enumerate(zip(ids, got, want, strict=False))
        if mine != theirs
    ]
    return {"tokens_equal": not differing, "tokens_compared": sum(map(len, want)), "differences": differing}


def difference(target: HFTarget, prompt: list[int], mine: list[int], theirs: list[int]) -> dict[str, Any]:
    """Where two outputs part, and how close the two best logits are there."""
    pairs = zip(mine, theirs, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(mine), len(theirs)))
    text = torch.tensor(prompt + theirs[:at])
    logits = target.open(torch.tensor([0]), [text]).logits[0, 0]
    best = logits.topk(2).values
    return {"position": at, "logit_gap": float(best[0] - best[1])}


if __name__ == "__main__":
    main()
