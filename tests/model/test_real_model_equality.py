"""On the real default model in float32, every drafter gives the tokens of transformers' own generate()."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from specdec_drafters.draft_model import DraftModel
from specdec_drafters.ngram import Ngram

from specdec import Drafter, Engine, HFTarget
from specdec.bench.chat import encode
from specdec.hf import load
from specdec.testing import RandomTree

pytestmark = [pytest.mark.model, pytest.mark.slow]

TOKENS = 40
OWN = [
    "Repeat this list three times: apple, pear, plum, cherry.",
    "Write a haiku about rain on a tin roof.",
    "Correct the spelling, and change nothing else: The quik brown fox jumpd over teh lazy dog and ran of.",
    "What is 17 + 25? Explain each step.",
]
SPEC_BENCH = Path(__file__).parents[3] / "shared" / "data" / "prompts" / "spec_bench" / "question.jsonl"


@pytest.fixture(scope="module")
def target() -> HFTarget:
    return HFTarget.load("smollm2", dtype="fp32", slots=4, max_len=1024)


@pytest.fixture(scope="module")
def helper() -> HFTarget:
    return HFTarget.load("smollm2", dtype="bf16", slots=4, max_len=1024)


@pytest.fixture(scope="module")
def prompts(target: HFTarget) -> list[list[int]]:
    return [encode(target.tokenizer, text) for text in OWN]


@pytest.fixture(scope="module")
def generated(prompts: list[list[int]]) -> list[list[int]]:
    return generate(prompts)


def generate(prompts: list[list[int]]) -> list[list[int]]:
    model, _ = load.load_model(load.resolve("smollm2"), torch.float32, torch.device("cpu"))
    out = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        tokens = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS)
        out.append(tokens[0, len(prompt) :].tolist())
    return out


DRAFTERS: dict[str, Callable[[HFTarget], str | Drafter]] = {
    "none": lambda helper: "none",
    "ngram": lambda helper: Ngram(),
    "draft_model": DraftModel,
    "random tree": lambda helper: RandomTree(),
}


def decoded(engine: Engine, prompts: list[list[int]], batch: int, **params: object) -> list[list[int]]:
    out: list[list[int]] = []
    for at in range(0, len(prompts), batch):
        out += [answer.tokens for answer in engine.generate(prompts[at : at + batch], **params)]
    return out


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_tokens_are_those_of_generate(
    name: str,
    batch: int,
    target: HFTarget,
    helper: HFTarget,
    prompts: list[list[int]],
    generated: list[list[int]],
) -> None:
    engine = Engine(target, DRAFTERS[name](helper), budget=5)
    assert decoded(engine, prompts, batch, max_tokens=TOKENS) == generated


@pytest.mark.parametrize("name", [name for name in DRAFTERS if name != "none"])
def test_a_seed_fixes_the_tokens_whatever_drafts(
    name: str, target: HFTarget, helper: HFTarget, prompts: list[list[int]]
) -> None:
    params = {"max_tokens": 24, "temperature": 0.8, "seed": 7}
    want = decoded(Engine(target), prompts, 1, **params)
    for budget, batch in ((1, 4), (2, 1), (5, 4), (9, 1)):
        engine = Engine(target, DRAFTERS[name](helper), budget=budget)
        assert decoded(engine, prompts, batch, **params) == want, (budget, batch)


@pytest.mark.skipif(not SPEC_BENCH.exists(), reason="the Spec-Bench prompts are not beside the project")
def test_spec_bench_prompts_are_answered_as_by_generate(target: HFTarget) -> None:
    lines = SPEC_BENCH.read_text(encoding="utf-8").splitlines()[::120]
    prompts = [encode(target.tokenizer, json.loads(line)["turns"][0])[:900] for line in lines]
    want = generate(prompts)
    assert decoded(Engine(target, "ngram", policy="cost"), prompts, 4, max_tokens=TOKENS) == want
