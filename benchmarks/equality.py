"""Token equality on a real model in float32, as JSON.

Greedy: every drafter, alone and in batches of four, against transformers' own generate(). At a temperature, with a
seed: every drafter, budget and batch against plain decoding here. A difference is reported with the gap between the
two best logits where it happened.

    python benchmarks/equality.py --prompts question.jsonl --count 40 --tokens 128 --json out.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from specdec import Drafter, Engine, HFTarget
from specdec.bench.chat import encode
from specdec.bench.machine import command, machine, versions
from specdec.bench.prompts import Prompt, read_prompts
from specdec.hf.load import load_model, resolve
from specdec.testing import RandomTree
from specdec_drafters.draft_model import DraftModel
from specdec_drafters.ngram import Ngram

BATCHES, BUDGETS = (1, 4), (1, 2, 5, 9)


def main() -> None:
    options = parsed()
    torch.set_num_threads(options.threads)
    prompts = spread(read_prompts(options.prompts), options.count)
    target = HFTarget.load(options.model, dtype="fp32", slots=4, max_len=options.max_len)
    helper = HFTarget.load(options.model, dtype="bf16", slots=4, max_len=options.max_len)
    ids = [encode(target.tokenizer, prompt.text) for prompt in prompts]
    with Progress() as progress:
        greedy = list(greedy_cases(target, helper, ids, options, progress))
        sampled = list(sampled_cases(target, helper, ids[: options.sampled], options, progress))
    result = {
        "command": command(),
        "versions": versions(),
        "machine": machine(),
        "model": options.model,
        "dtype": "fp32",
        "prompts": [prompt.id for prompt in prompts],
        "tokens": options.tokens,
        "tokens_equal": all(case["tokens_equal"] for case in (*greedy, *sampled)),
        "greedy_against_transformers": greedy,
        "sampled_against_plain": sampled,
    }
    options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({"tokens_equal": result["tokens_equal"], "cases": len(greedy) + len(sampled)}))


def parsed() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--sampled", type=int, default=8, help="prompts of the runs at a temperature")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--max-len", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, required=True)
    return parser.parse_args()


def spread(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """`count` prompts at even distances, so that every category has its share."""
    step = max(1, len(prompts) // count)
    return list(prompts[::step][:count])


def drafters(helper: HFTarget) -> dict[str, str | Drafter]:
    return {"none": "none", "ngram": Ngram(), "draft_model": DraftModel(helper), "random tree": RandomTree()}


def greedy_cases(
    target: HFTarget, helper: HFTarget, ids: list[list[int]], options: Any, progress: Progress
) -> Iterator[dict[str, Any]]:
    want = reference(ids, options, progress)
    for name, drafter in drafters(helper).items():
        engine = Engine(target, drafter, budget=1 if name == "none" else 5)
        for batch in BATCHES:
            start = time.perf_counter()
            got = decode(engine, ids, batch, progress, f"{name}, batch {batch}", max_tokens=options.tokens)
            yield {
                "drafter": name,
                "batch": batch,
                "seconds": round(time.perf_counter() - start, 1),
                **compared(target, ids, got, want),
            }


def sampled_cases(
    target: HFTarget, helper: HFTarget, ids: list[list[int]], options: Any, progress: Progress
) -> Iterator[dict[str, Any]]:
    params = {"max_tokens": options.tokens // 2, "temperature": options.temperature, "seed": 7}
    want = decode(Engine(target), ids, 1, progress, "plain, sampled", **params)
    for name, drafter in drafters(helper).items():
        for budget in BUDGETS[:1] if name == "none" else BUDGETS:
            for batch in BATCHES:
                engine = Engine(target, drafter, budget=budget)
                label = f"{name}, sampled, budget {budget}, batch {batch}"
                got = decode(engine, ids, batch, progress, label, **params)
                yield {"drafter": name, "budget": budget, "batch": batch, **compared(target, ids, got, want)}


def reference(ids: list[list[int]], options: Any, progress: Progress) -> list[list[int]]:
    """What transformers' generate() gives."""
    model, _ = load_model(resolve(options.model), torch.float32, torch.device("cpu"))
    out = []
    for prompt in progress.track(ids, description="transformers generate"):
        given = torch.tensor([prompt])
        tokens = model.generate(
            given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=options.tokens
        )
        out.append(tokens[0, len(prompt) :].tolist())
    return out


def decode(
    engine: Engine, ids: list[list[int]], batch: int, progress: Progress, label: str, **params: Any
) -> list[list[int]]:
    out: list[list[int]] = []
    for at in progress.track(range(0, len(ids), batch), description=label):
        out += [answer.tokens for answer in engine.generate(ids[at : at + batch], **params)]
    return out


def compared(
    target: HFTarget, ids: list[list[int]], got: list[list[int]], want: list[list[int]]
) -> dict[str, Any]:
    differing = [
        difference(target, prompt, mine, theirs) | {"prompt": i}
        for i, (prompt, mine, theirs) in enumerate(zip(ids, got, want, strict=True))
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
