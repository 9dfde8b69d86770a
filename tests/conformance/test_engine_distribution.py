"""What the engine emits with a rule that reads q is distributed as plain sampling of the target.

Chi-square at p = 1e-4 with fixed seeds: a false alarm could only come with a change of the noise, and then once in
10,000 for each case.
"""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
import torch
from sampled_drafters import Drawn
from scipy.stats import chi2

from specdec import Engine
from specdec.params import SamplingParams
from specdec.testing import TinyTarget

V, ROWS, START = 5, 1600, 2


class Bigrams(TinyTarget):
    """A target whose logits depend on the last token alone, so that every chance can be worked out."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__(V, slots=ROWS, max_len=6, max_budget=8)
        self.table = table

    def _forward(self, slots, start, tokens, reach, depth):
        from specdec.types import Scores

        return Scores(self.table[tokens].log())


def tables() -> tuple[torch.Tensor, torch.Tensor]:
    dice = torch.Generator().manual_seed(4)
    p, q = torch.randn(2, V, V, generator=dice).mul(1.3).softmax(-1)
    return p, q


def statistic(p: torch.Tensor, drafter: Drawn, rule: str, **options: float) -> tuple[float, int]:
    """Chi-square of the second to fourth token given the first, and its degrees of freedom."""
    params = [SamplingParams(max_tokens=4, temperature=1.0, seed=100 + i, **options) for i in range(ROWS)]
    engine = Engine(Bigrams(p), drafter, rule, budget=8)
    texts = Counter(tuple(one.tokens) for one in engine.generate([[START]] * ROWS, params))
    total, cells = 0.0, 0
    rest, rest_seen = 0.0, 0
    for text in product(range(V), repeat=4):
        chance = 1.0
        for before, token in zip((START, *text), text, strict=False):
            chance *= float(p[before, token])
        expected, seen = chance * ROWS, texts[text]
        if expected < 5:
            rest, rest_seen = rest + expected, rest_seen + seen
            continue
        total, cells = total + (seen - expected) ** 2 / expected, cells + 1
    return total + (rest_seen - rest) ** 2 / rest, cells


@pytest.mark.parametrize(
    ("rule", "width", "depth"),
    [("rejection", 1, 1), ("rejection", 1, 3), ("tree_rejection", 1, 3), ("tree_rejection", 2, 2), ("match", 3, 2)],
)
def test_emitted_tokens_follow_the_target(rule: str, width: int, depth: int) -> None:
    """Drafts were judged without the distribution they were drawn from, which bent the output towards the drafter."""
    p, q = tables()
    value, freedom = statistic(p, Drawn(q, width=width, depth=depth), rule)
    assert value < chi2.isf(1e-4, freedom)


@pytest.mark.parametrize("kind", ["the target itself", "one-hot", "disjoint support"])
@pytest.mark.parametrize(("rule", "width"), [("rejection", 1), ("tree_rejection", 2)])
def test_extreme_drafters_leave_the_distribution(kind: str, rule: str, width: int) -> None:
    p, q = tables()
    if kind == "disjoint support":
        p, q = p.clone(), q.clone()
        p[:, 3:], q[:, :3] = 0.0, 0.0
        p = p / p.sum(-1, keepdim=True)
    elif kind == "one-hot":
        q = torch.eye(V)[q.argmax(-1)] * 0.999998 + 4e-7
    else:
        q = p
    q = q / q.sum(-1, keepdim=True)
    value, freedom = statistic(p, Drawn(q, width=width, depth=2), rule)
    assert value < chi2.isf(1e-4, freedom)


def test_top_k_and_top_p_are_part_of_the_target_s_distribution() -> None:
    """The rule compared raw target probabilities with a filtered draft."""
    p, q = tables()
    flat = p.log().div(0.7).softmax(-1)
    best = flat.topk(3).values[:, -1:]
    kept = flat * (flat >= best)
    engine = Engine(Bigrams(p), Drawn(q, width=1, depth=3), "rejection", budget=8)
    params = [SamplingParams(max_tokens=4, temperature=0.7, top_k=3, seed=i) for i in range(ROWS)]
    tokens = torch.tensor([one.tokens for one in engine.generate([[START]] * ROWS, params)])
    kept = kept / kept.sum(-1, keepdim=True)
    total = 0.0
    for before in range(V):
        seen = torch.bincount(tokens[:, 1:][tokens[:, :-1] == before], minlength=V).double()
        expected = kept[before].double() * seen.sum()
        assert int(seen[kept[before] == 0].sum()) == 0
        live = kept[before] > 0
        total += float(((seen - expected)[live] ** 2 / expected[live]).sum())
    assert total < chi2.isf(1e-4, 2 * V)


def test_a_misreported_q_is_found_out() -> None:
    p, q = tables()
    value, freedom = statistic(p, Drawn(q, width=1, depth=3, misreport=True), "rejection")
    assert value > 2 * chi2.isf(1e-4, freedom)
