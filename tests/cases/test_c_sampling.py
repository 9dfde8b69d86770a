"""Sampling: rows of different rules in one batch, ties, seeds, and log-probabilities."""

from __future__ import annotations

import pytest
import torch
from case_helpers import SHAPES, assert_same, plain
from specdec_drafters.draft_model import DraftModel

from specdec import Engine, OptionError, SamplingParams
from specdec.testing import Echo, RandomTree, ScriptedDrafter, TableTarget, TinyTarget

PROMPTS = [[1, 5, 9, 2], [3, 3, 8], [2], [9, 8, 9, 8, 9, 8, 9], [7, 7], [30, 1, 2]]
MIXED = [
    SamplingParams(max_tokens=15, temperature=0.0),
    SamplingParams(max_tokens=15, temperature=1.2, seed=1),
    SamplingParams(max_tokens=15, temperature=0.7, seed=2, top_k=3),
    SamplingParams(max_tokens=15, temperature=0.9, seed=3, top_p=0.6),
    SamplingParams(max_tokens=15, temperature=1.5, seed=4, min_p=0.2),
    SamplingParams(max_tokens=15, temperature=0.4, seed=5, top_k=20, top_p=0.9, min_p=0.01),
]


@pytest.mark.parametrize("drafter", ["itself", "trees", "answers", "tree of answers", "none"])
def test_each_row_of_a_mixed_batch_is_sampled_by_its_own_options(drafter: str) -> None:
    """The first request's temperature, top-k and top-p were used for all; a greedy row among sampled ones was NaN."""
    alone = [plain(TinyTarget(), [prompt], params)[0] for prompt, params in zip(PROMPTS, MIXED, strict=True)]
    answers = {tuple(prompt): one.tokens for prompt, one in zip(PROMPTS, alone, strict=True)}
    made = {
        "itself": lambda: DraftModel(TinyTarget()),
        "trees": lambda: RandomTree(narrow=5),
        "answers": lambda: SHAPES["chain"](answers, rate=0.7),
        "tree of answers": lambda: SHAPES["tree"](answers, rate=0.7),
        "none": lambda: ScriptedDrafter([]),
    }[drafter]()
    together = Engine(TinyTarget(), made, budget=6, check=True).generate(PROMPTS, MIXED)
    assert_same(together, alone)


@pytest.mark.parametrize("rule", ["rejection", "tree_rejection", "typical", "match"])
def test_greedy_rows_are_exact_with_every_rule_beside_sampled_rows(rule: str) -> None:
    """A greedy row in a batch of sampled rows divided by zero and accepted -1 tokens."""
    greedy = plain(TinyTarget(), PROMPTS[:1], MIXED[0])
    engine = Engine(TinyTarget(), DraftModel(TinyTarget(seed=1)), rule, budget=5, check=True)
    assert_same(engine.generate(PROMPTS, MIXED)[:1], greedy)


def test_the_greedy_rule_refuses_a_temperature_by_name() -> None:
    engine = Engine(TinyTarget(), "none", "greedy")
    with pytest.raises(OptionError, match=r"verifier 'greedy' cannot serve this request: .*temperature 0\.5"):
        engine.generate([[1]], temperature=0.5)


@pytest.mark.parametrize("others", [0, 3])
@pytest.mark.parametrize("rule", ["greedy", "match", "rejection", "tree_rejection", "typical"])
def test_a_tie_is_the_lowest_id_alone_and_in_a_batch(others: int, rule: str) -> None:
    """Greedy was approximated by a temperature of 1e-6, which broke ties by chance."""
    ties = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
    params = [SamplingParams(max_tokens=6)] + [
        SamplingParams(max_tokens=6, temperature=0.0 if rule == "greedy" else 1.0, seed=i) for i in range(others)
    ]
    drafter = ScriptedDrafter([[1, 1], [0, 1], [0, 0, 0]])
    got = Engine(TableTarget(ties), drafter, rule, budget=4).generate([[0]] * (1 + others), params)
    assert got[0].tokens == [0] * 6


@pytest.mark.parametrize("rule", ["match", "rejection", "tree_rejection"])
def test_a_seed_fixes_the_output_in_any_batch(rule: str) -> None:
    """With one seed, the output depended on what else was in the batch."""

    def engine() -> Engine:
        return Engine(TinyTarget(), DraftModel(TinyTarget(seed=1)), rule, budget=4)

    params = [SamplingParams(max_tokens=12, temperature=1.0, seed=i) for i in range(len(PROMPTS))]
    together = engine().generate(PROMPTS, params)
    again = engine().generate(PROMPTS, params)
    assert_same(together, again)
    if rule == "match":
        assert_same(together, [engine().generate([p], s)[0] for p, s in zip(PROMPTS, params, strict=True)])


def test_no_seed_draws_a_new_one_and_tells_it() -> None:
    engine = Engine(TinyTarget(), "ngram", budget=4)
    one, two = engine.generate([PROMPTS[0]] * 2, max_tokens=20, temperature=1.3)
    assert one.seed != two.seed
    assert one.tokens != two.tokens
    [again] = engine.generate([PROMPTS[0]], max_tokens=20, temperature=1.3, seed=two.seed)
    assert again.tokens == two.tokens


def test_n_completions_have_seeds_one_after_another() -> None:
    engine = Engine(TinyTarget(), DraftModel(TinyTarget()), budget=4)
    got = engine.generate(PROMPTS[:2], max_tokens=12, temperature=1.1, seed=40, n=3)
    assert [(one.seed, one.index) for one in got] == [(40, 0), (41, 1), (42, 2)] * 2
    for one, prompt in zip(got, [PROMPTS[0]] * 3 + [PROMPTS[1]] * 3, strict=True):
        [alone] = engine.generate([prompt], max_tokens=12, temperature=1.1, seed=one.seed)
        assert alone.tokens == one.tokens


@pytest.mark.parametrize("seed", [-(1 << 63), -1, (1 << 63) - 1])
def test_extreme_seeds_serve_n_completions(seed: int) -> None:
    got = Engine(TinyTarget(), "ngram").generate([PROMPTS[0]], max_tokens=6, temperature=1.0, seed=seed, n=2)
    [again] = Engine(TinyTarget(), "none").generate([PROMPTS[0]], max_tokens=6, temperature=1.0, seed=got[1].seed)
    assert got[0].seed == seed
    assert again.tokens == got[1].tokens


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("drafter", ["chain", "tree", "trees", "itself"])
def test_logprobs_are_those_of_the_target(drafter: str, temperature: float) -> None:
    """Log-probabilities were 0.0, or missing for accepted, bonus and corrected tokens.

    They are the target's own, before penalties, biases and temperature.
    """
    params = SamplingParams(
        max_tokens=14, temperature=temperature, seed=9, logprobs=3, frequency_penalty=0.5, logit_bias={4: 1.0}
    )
    want = plain(TinyTarget(), PROMPTS, params)
    answers = {tuple(prompt): one.tokens for prompt, one in zip(PROMPTS, want, strict=True)}
    made = {
        "chain": lambda: Echo(answers, rate=0.7),
        "tree": lambda: SHAPES["tree"](answers, rate=0.7),
        "trees": lambda: RandomTree(narrow=5),
        "itself": lambda: DraftModel(TinyTarget()),
    }[drafter]()
    got = Engine(TinyTarget(), made, budget=6).generate(PROMPTS, params)
    assert_same(got, want)
    target = TinyTarget()
    for prompt, one in zip(PROMPTS, got, strict=True):
        assert one.logprobs is not None
        assert [entry.token for entry in one.logprobs] == one.tokens
        for i, entry in enumerate(one.logprobs):
            text = torch.tensor([*prompt, *one.tokens[:i]])
            table = target.open(torch.tensor([0]), [text]).logits[0, 0].log_softmax(-1)
            assert entry.logprob == pytest.approx(float(table[entry.token]), abs=1e-5)
            best = table.topk(3)
            assert list(entry.top) == best.indices.tolist()
            assert list(entry.top.values()) == pytest.approx(best.values.tolist(), abs=1e-5)


@pytest.mark.parametrize(("asked", "held"), [(0, 0), (1, 1), (37, 37), (99, 37)])
def test_as_many_best_tokens_are_told_as_asked(asked: int, held: int) -> None:
    [out] = Engine(TinyTarget(), "ngram").generate([PROMPTS[0]], max_tokens=5, logprobs=asked)
    assert out.logprobs is not None
    assert [len(entry.top) for entry in out.logprobs] == [held] * 5
    [silent] = Engine(TinyTarget(), "ngram").generate([PROMPTS[0]], max_tokens=5)
    assert silent.logprobs is None
