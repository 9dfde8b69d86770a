"""HFTarget says what transformers' own forward says, for prompts, trees, windows and taps, in every family.

Tolerance: float32 sums of at most 48 terms in another order, three layers deep, on logits of a few tens: errors
stay below 1e-4 of the largest logit, while a wrong mask or position moves logits by whole units.
"""

from __future__ import annotations

import pytest
import tiny_models as models
import torch
from tiny_models import CASES

from specdec.errors import CapacityError, OptionError
from specdec.hf import HFTarget
from specdec.types import Draft, Verdict

families = pytest.mark.parametrize(("family", "backbone"), CASES)


def target(family: str, backbone: str, **options) -> HFTarget:
    options = {"slots": 4, "max_len": 64, "max_budget": 12, **options}
    return HFTarget(models.model(family), backbone=backbone, **options)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


@families
@pytest.mark.parametrize("chunk", [4, 7, 512])
def test_prefill_in_chunks_equals_one_forward(family, backbone, chunk):
    found = target(family, backbone, prefill_chunk=chunk).open(torch.tensor([2]), [models.prompt(30)])
    assert found.logits.shape == (1, 1, models.VOCAB)
    assert found.logits.dtype == torch.float32
    close(found.logits[0, 0], models.plain(family, models.prompt(30))[-1])


@families
def test_prompts_of_many_lengths_are_prefilled_each_by_itself(family, backbone):
    prompts = [models.prompt(length, seed) for seed, length in enumerate((3, 30, 1, 4))]
    found = target(family, backbone, prefill_chunk=16).open(torch.tensor([3, 0, 2, 1]), prompts)
    for row, tokens in enumerate(prompts):
        close(found.logits[row, 0], models.plain(family, tokens)[-1])


@families
def test_each_node_of_a_tree_is_scored_as_its_root_path(family, backbone):
    """Windows of 8 at 30 tokens: what is hidden differs for every depth of the tree."""
    prompts = [models.prompt(30), models.prompt(11, 2), models.prompt(30, 3)]
    it, slots = target(family, backbone), torch.tensor([1, 0, 3])
    it.open(slots, prompts)
    draft = models.random_tree(3, 9, seed=5)
    scores = it.score(slots, torch.tensor([31, 12, 31]), draft)
    for row, tokens in enumerate(prompts):
        for node in range(9):
            if draft.used[row, node]:
                path = torch.tensor(models.path_tokens(draft, row, node))
                close(scores.logits[row, node], models.plain(family, torch.cat([tokens, path]))[-1])


@families
@pytest.mark.parametrize("linear", [True, False])
def test_after_a_commit_the_next_score_continues_the_kept_path(family, backbone, linear):
    tokens, it, slots = models.prompt(30), target(family, backbone), torch.tensor([2])
    it.open(slots, [tokens])
    if linear:
        draft = Draft.chain(torch.tensor([5]), models.prompt(6, 9)[None])
        path = [0, 1, 2]
    else:
        draft = Draft(models.prompt(7, 9)[None], torch.tensor([[-1, 0, 0, 0, 2, 3, 4]]))
        path = [0, 2, 4]
    lengths = torch.tensor([31])
    it.score(slots, lengths, draft)
    verdict = Verdict(torch.tensor([path + [-1] * 4]), torch.tensor([2]), torch.tensor([11]))
    it.commit(slots, lengths, draft, verdict)
    after = Draft.chain(torch.tensor([11]), torch.tensor([[12, 13]]))
    scores = it.score(slots, torch.tensor([34]), after)
    text = torch.cat([tokens, draft.tokens[0, path], torch.tensor([11, 12, 13])])
    close(scores.logits[0], models.plain(family, text)[-3:])


@families
def test_rejected_drafts_leave_no_trace_behind_a_window(family, backbone):
    """A draft of 10 nodes, longer than the window of 8, is rejected whole at each of several steps."""
    text, it, slots = models.prompt(26), target(family, backbone), torch.tensor([0])
    it.open(slots, [text[:20]])
    for length in range(21, 26):
        anchor = text[length - 1 : length]
        draft = Draft.chain(anchor, models.prompt(10, seed=length)[None])
        scores = it.score(slots, torch.tensor([length]), draft)
        close(scores.logits[0, 0], models.plain(family, text[:length])[-1])
        nothing = Verdict(torch.tensor([[0] + [-1] * 10]), torch.tensor([0]), text[length : length + 1])
        it.commit(slots, torch.tensor([length]), draft, nothing)
        alone = it.score(slots, torch.tensor([length]), Draft.empty(anchor))
        close(alone.logits[0, 0], models.plain(family, text[:length])[-1])


@families
def test_a_row_does_not_depend_on_the_rows_beside_it(family, backbone):
    slots, lengths = torch.tensor([0, 1, 2]), torch.tensor([31, 6, 18])
    prompts = [models.prompt(int(length) - 1, 3) for length in lengths]
    draft = models.random_tree(3, 6, seed=8)
    it = target(family, backbone)
    it.open(slots, prompts)
    together = it.score(slots, lengths, draft)
    for row in range(3):
        one = torch.tensor([row])
        alone = target(family, backbone)
        alone.open(one, [prompts[row]])
        found = alone.score(one, lengths[one], Draft(draft.tokens[one], draft.parents[one]))
        used = draft.used[row]
        close(together.logits[row][used], found.logits[0][used])


@families
def test_a_reused_slot_starts_afresh(family, backbone):
    it, slots = target(family, backbone), torch.tensor([1])
    it.open(slots, [models.prompt(40)])
    it.close(slots)
    found = it.open(slots, [models.prompt(5, 4)])
    close(found.logits[0, 0], models.plain(family, models.prompt(5, 4))[-1])


@families
def test_taps_are_the_residual_stream_after_their_layers(family, backbone):
    tokens = models.prompt(12)
    it = target(family, backbone, taps=(1, 0), prefill_chunk=5)
    with torch.no_grad():
        states = models.model(family)(input_ids=tokens[None], output_hidden_states=True).hidden_states
    expected = torch.cat([states[2], states[1]], -1)[0]  # entry 0 is the embedding
    opened = it.open(torch.tensor([0, 1, 2]), [tokens[:9], tokens[:1], tokens[:2]])  # the last two share a forward
    assert opened.hidden is not None
    close(opened.hidden[:, 0], expected[[8, 0, 1]])
    scored = it.score(torch.tensor([0]), torch.tensor([10]), Draft.chain(tokens[9:10], tokens[10:][None]))
    assert scored.hidden is not None
    close(scored.hidden[0], expected[9:])


@families
def test_the_last_token_a_sequence_may_have_is_scored(family, backbone):
    """The draft reaches past max_len there; those nodes can never be emitted, and the anchor's score stays right."""
    tokens, it = models.prompt(64), target(family, backbone)
    it.open(torch.tensor([0]), [tokens[:63]])
    draft = Draft.chain(tokens[63:], models.prompt(11)[None])
    scores = it.score(torch.tensor([0]), torch.tensor([64]), draft)
    close(scores.logits[0, 0], models.plain(family, tokens)[-1])


@pytest.mark.parametrize("family", [name for name, backbone in CASES if backbone == "fused"])
def test_fused_and_transformers_backbones_write_the_same_text(family):
    texts = []
    for backbone in ("fused", "transformers"):
        it, slots = target(family, backbone), torch.tensor([0])
        text = models.prompt(10).tolist()
        text.append(int(it.open(slots, [torch.tensor(text)]).logits.argmax()))
        while len(text) < 40:
            step = it.score(slots, torch.tensor([len(text)]), Draft.empty(torch.tensor(text[-1:])))
            text.append(int(step.logits.argmax()))
        texts.append(text)
    assert texts[0] == texts[1]


def test_auto_takes_the_fused_backbone_where_it_fits():
    assert target("llama", "auto").backbone == "fused"
    assert target("gpt2", "auto").backbone == "transformers"
    with pytest.raises(OptionError, match="GPT2LMHeadModel"):
        target("gpt2", "fused")
    with pytest.raises(OptionError, match="backbone 'fast' was asked for; known are auto"):
        target("llama", "fast")


@pytest.mark.parametrize("backbone", ["fused", "transformers"])
def test_the_model_itself_still_works_and_keeps_no_hook(backbone):
    before, hooks = models.plain("llama", models.prompt(9)), hook_count()
    implementation = models.model("llama").config._attn_implementation
    for _ in range(2):  # a second target over the same model
        it = target("llama", backbone, taps=(1,))
        it.open(torch.tensor([0]), [models.prompt(9)])
    torch.testing.assert_close(models.plain("llama", models.prompt(9)), before, rtol=0, atol=0)
    assert models.model("llama").config._attn_implementation == implementation
    assert hook_count() == hooks


def hook_count() -> int:
    """Hooks on the model; transformers adds some of its own when hidden states are first asked for."""
    modules = list(models.model("llama").modules())
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in modules)


@pytest.mark.parametrize("backbone", ["fused", "transformers"])
def test_scores_are_ordinary_tensors(backbone):
    """Shaping writes to logits in place and training reads hidden states: neither works on inference tensors."""
    scores = target("llama", backbone, taps=(0,)).open(torch.tensor([0]), [models.prompt(4)])
    assert not scores.logits.is_inference()
    assert scores.hidden is not None
    weight = torch.ones(32, requires_grad=True)
    (scores.hidden * weight).sum().backward()
    assert weight.grad is not None


def test_spec_names_what_the_model_is():
    spec = target("qwen3", "auto", taps=(2,)).spec
    assert (spec.vocab_size, spec.hidden_size, spec.num_layers) == (models.VOCAB, 32, 3)
    assert (spec.max_len, spec.slots, spec.max_budget, spec.taps, spec.eos_ids) == (64, 4, 12, (2,), (7,))
    assert (spec.dtype, spec.name) == (torch.float32, "qwen3")
    assert HFTarget(models.model("qwen3"), slots=1).spec.max_len == 128  # the model's positions


def test_kv_bytes_counts_what_is_reserved():
    it = target("llama", "auto")
    assert it.kv_bytes(1) == 3 * 2 * (8 + 8) * 4  # layers, heads, dims of key and value, bytes
    assert it.kv_bytes() == it.kv_bytes(4 * (64 + 12)) == it.cache.k.nbytes + it.cache.v.nbytes


def test_capacity_errors_hold_the_numbers():
    it = target("llama", "auto")
    with pytest.raises(CapacityError, match=r"prompt 1 has 65 tokens; max_len=64"):
        it.open(torch.tensor([0, 1]), [models.prompt(3), models.prompt(65)])
    with pytest.raises(CapacityError, match=r"prompt 0 has 0 tokens"):
        it.open(torch.tensor([0]), [models.prompt(0)])
    with pytest.raises(CapacityError, match=r"a draft of 13 nodes was to be scored; max_budget=12"):
        it.score(torch.tensor([0]), torch.tensor([5]), models.random_tree(1, 13, 1))
    with pytest.raises(CapacityError, match=r"slots \[4\] were named; the target has 4"):
        it.open(torch.tensor([4]), [models.prompt(3)])
    with pytest.raises(CapacityError, match="max_len=129 was asked for; the model has 128 positions"):
        target("llama", "auto", max_len=129)


def test_slabs_that_do_not_fit_are_refused_before_they_are_reserved():
    needed = 10**9 * (64 + 12) * 3 * 2 * (8 + 8) * 4
    with pytest.raises(CapacityError, match=rf"need {needed} bytes of keys and values; \d+ bytes are available on cpu"):
        target("llama", "auto", slots=10**9)


@pytest.mark.parametrize("option", ["slots", "max_budget", "prefill_chunk"])
def test_options_that_count_are_at_least_one(option):
    with pytest.raises(OptionError, match=f"{option} was set to 0"):
        target("llama", "auto", **{option: 0})


def test_only_layers_that_exist_can_be_tapped():
    with pytest.raises(OptionError, match="layer 3 was to be tapped; the model has 3"):
        target("llama", "auto", taps=(3,))
