"""The default model, for real: fetched or found, converted, and equal in tokens to transformers' own generate."""

from __future__ import annotations

import pytest
import torch
import transformers

from specdec.hf import HFTarget, load
from specdec.types import Draft, Verdict

pytestmark = pytest.mark.model
PROMPTS = ["The capital of France is", "def fibonacci(n):\n", "Water boils at"]


@pytest.fixture(scope="module")
def folder():
    return load.resolve("smollm2")


@pytest.mark.parametrize("backbone", ["fused", "transformers"])
def test_greedy_tokens_equal_generate(folder, backbone):
    """In float32, with every second round a chain of five wrong guesses that has to be dropped."""
    target = HFTarget.load("smollm2", dtype="fp32", backbone=backbone, slots=1, max_len=128)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    slots = torch.tensor([0])
    for prompt in PROMPTS:
        ids = target.tokenizer(prompt, return_tensors="pt")["input_ids"]
        expected = model.generate(ids, max_new_tokens=32, do_sample=False, eos_token_id=None)[0].tolist()
        text = ids[0].tolist()
        text.append(int(target.open(slots, [ids[0]]).logits.argmax()))
        while len(text) < len(expected):
            anchor, lengths = torch.tensor(text[-1:]), torch.tensor([len(text)])
            draft = Draft.chain(anchor, torch.full((1, 5), 99)) if len(text) % 2 else Draft.empty(anchor)
            following = target.score(slots, lengths, draft).logits[0, 0].argmax()
            path = torch.tensor([[0] + [-1] * (draft.nodes - 1)])
            target.commit(slots, lengths, draft, Verdict(path, torch.tensor([0]), following[None]))
            text.append(int(following))
        assert text == expected


def test_bf16_logits_are_as_near_to_float32_as_transformers_own(folder):
    target = HFTarget.load("smollm2", slots=1, max_len=128)
    assert (target.spec.dtype, target.backbone, target.spec.eos_ids) == (torch.bfloat16, "fused", (2,))
    ids = target.tokenizer(PROMPTS[0], return_tensors="pt")["input_ids"]
    found = target.open(torch.tensor([0]), [ids[0]]).logits[0, 0]
    with torch.no_grad():
        own = [
            transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)(ids).logits[0, -1].float()
            for dtype in (torch.float32, torch.bfloat16)
        ]
    assert (found - own[0]).abs().mean() < 2 * (own[1] - own[0]).abs().mean()
    assert int(found.argmax()) == int(own[0].argmax())
