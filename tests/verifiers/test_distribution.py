"""What the lossless rules emit is distributed as the target's, whatever q a draft was drawn from.

Each case is one chi-square over the first two tokens at FALSE_ALARM = 1e-4. There are under 150 of them: with
fresh seeds a sound rule would fail somewhere with a chance of 1.5 % at most. Seeds are fixed, so a sound rule that
passes once passes always.
"""

from __future__ import annotations

import pytest
import torch
from rule_checks import (
    CHAIN,
    HOT,
    NARROW,
    START,
    TREE,
    Chosen,
    Drawn,
    first_two_fit,
    fits,
    plain,
    probabilities,
    scores,
    table,
)
from specdec_verifiers.match import Match
from specdec_verifiers.rejection import Rejection
from specdec_verifiers.tree_rejection import TreeRejection
from torch import Tensor

from specdec import Draft, Sampling, SamplingParams, Verifier

ALL = [
    pytest.param(Match(), id="match"),
    pytest.param(Rejection(), id="rejection"),
    pytest.param(TreeRejection(), id="tree_rejection"),
]
BY_Q = [ALL[1], ALL[2]]
ROWS = 8_000


def _q(kind: str, target: Tensor) -> Tensor:
    """Make a draft distribution after each token: [V, V]."""
    vocab = target.shape[0]
    if kind == "equal":
        return target.softmax(-1)
    if kind == "one-hot":
        return torch.nn.functional.one_hot(table(vocab, 2).argmax(-1), vocab).float()
    soft = table(vocab, 2).softmax(-1)
    if kind == "half":
        soft = soft.clone()
        soft[:, vocab // 2 :] = 0
    return soft / soft.sum(-1, keepdim=True)


@pytest.mark.parametrize("kind", ["soft", "half", "one-hot", "equal"])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("rule", BY_Q)
def test_a_drawn_chain_changes_no_distribution(rule: Verifier, k: int, kind: str) -> None:
    target = table(8, 1)
    assert first_two_fit(rule, target, Drawn(_q(kind, target), CHAIN[k]), HOT, ROWS)


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("rule", BY_Q)
def test_a_drawn_chain_changes_no_distribution_over_a_larger_vocabulary(rule: Verifier, k: int) -> None:
    target = table(50, 1)
    assert first_two_fit(rule, target, Drawn(_q("soft", target), CHAIN[k]), HOT, ROWS)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("rule", ALL)
def test_a_chosen_chain_changes_no_distribution(rule: Verifier, k: int) -> None:
    """A chosen token states no q; other engines treated it as drawn from a soft one."""
    target = table(8, 1)
    assert first_two_fit(rule, target, Chosen(target.softmax(-1), CHAIN[k]), HOT, ROWS)


@pytest.mark.parametrize("replacement", [True, False], ids=["replacement", "no-replacement"])
@pytest.mark.parametrize("kind", ["soft", "half", "equal"])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_drawn_tree_changes_no_distribution(width: int, kind: str, replacement: bool) -> None:
    target = table(8, 1)
    drafter = Drawn(_q(kind, target), TREE[width], replacement)
    assert first_two_fit(TreeRejection(), target, drafter, HOT, ROWS)


@pytest.mark.parametrize("replacement", [True, False], ids=["replacement", "no-replacement"])
def test_a_drawn_tree_changes_no_distribution_over_a_larger_vocabulary(replacement: bool) -> None:
    target = table(50, 1)
    drafter = Drawn(_q("soft", target), TREE[3], replacement)
    assert first_two_fit(TreeRejection(), target, drafter, HOT, ROWS)


@pytest.mark.parametrize("twins", [False, True], ids=["ranked", "twins"])
@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("rule", [ALL[0], ALL[2]])
def test_a_chosen_tree_changes_no_distribution(rule: Verifier, width: int, twins: bool) -> None:
    target = table(8, 1)
    assert first_two_fit(rule, target, Chosen(target.softmax(-1), TREE[width], twins), HOT, ROWS)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=1.0, top_k=3),
        SamplingParams(temperature=1.0, top_p=0.8),
        SamplingParams(temperature=1.0, min_p=0.2),
        SamplingParams(temperature=1.5, top_k=5, top_p=0.9, min_p=0.05),
        NARROW,
    ],
    ids=["cool", "top_k", "top_p", "min_p", "all", "narrow"],
)
@pytest.mark.parametrize("rule", ALL)
def test_filters_hold_under_a_draft_that_ignores_them(rule: Verifier, params: SamplingParams) -> None:
    target = table(8, 1)
    assert first_two_fit(rule, target, Drawn(_q("soft", target), CHAIN[2]), params, ROWS)


@pytest.mark.parametrize("rule", BY_Q)
def test_disjoint_supports_change_no_distribution(rule: Verifier) -> None:
    target = table(8, 1)
    target[:, :4] = -torch.inf
    assert first_two_fit(rule, target, Drawn(_q("half", target), CHAIN[3]), HOT, ROWS)


@pytest.mark.parametrize("rule", ALL)
def test_rows_of_one_batch_keep_their_own_temperatures(rule: Verifier) -> None:
    """Rows at 0, 0.7 and 1.3 in turn: the first decode plainly, the others fit their own distributions."""
    target, rows = table(8, 1), 15_000
    kinds = [SamplingParams(temperature=t) for t in (0.0, 0.7, 1.3)]
    sampling = Sampling.of(kinds * (rows // 3), range(rows))
    anchor = torch.zeros(rows, dtype=torch.int64)
    draft = Drawn(_q("soft", target), CHAIN[2]).draft(anchor, torch.Generator().manual_seed(0))
    verdict = rule.accept(draft, scores(target, draft), sampling, torch.full((rows,), START))
    first = verdict.emitted(draft)[:, 0]
    assert bool((first[0::3] == target[0].argmax()).all())
    for row, params in enumerate(kinds[1:], 1):
        assert fits(torch.bincount(first[row::3], minlength=8), probabilities(target, params)[0]), params.temperature


@pytest.mark.parametrize("rule", ALL)
def test_a_batch_of_mixed_temperatures_has_no_nan(rule: Verifier) -> None:
    """Greedy rows among sampled ones divided by zero in other engines, and accepted -1 tokens."""
    kinds = [SamplingParams(temperature=t) for t in (0.0, 1e-40, 1e-6, 1.0, 1e6)]
    sampling = Sampling.of(kinds, range(5))
    target = table(8, 1, 30.0)
    assert bool(sampling.distribution(target[None, :2].expand(5, -1, -1)).isfinite().all())
    draft = Drawn(_q("soft", target), CHAIN[3]).draft(torch.zeros(5, dtype=torch.int64), torch.Generator())
    verdict = rule.accept(draft, scores(target, draft), sampling, torch.full((5,), START))
    assert bool(((verdict.accepted >= 0) & (verdict.next_token >= 0) & (verdict.next_token < 8)).all())
    cold = plain(target, Sampling.uniform(3), 1)[:, 0]
    assert torch.equal(verdict.emitted(draft)[:3, 0], cold)


@pytest.mark.parametrize("rule", ALL)
def test_ties_at_temperature_0_give_the_lowest_id(rule: Verifier) -> None:
    """Greedy as a very small temperature breaks ties by chance; [1, 1, 0] gives 0, alone or in a batch."""
    kinds = [SamplingParams(temperature=t) for t in (0.0, 1.0, 0.0)]
    target = torch.tensor([[1.0, 1.0, 0.0]]).expand(3, 3)
    for rows in ([0], [0, 1, 2]):
        sampling = Sampling.of([kinds[row] for row in rows], rows)
        anchor = torch.full((len(rows),), 2)
        draft = Draft.chain(anchor, torch.tensor([[1, 1]]).expand(len(rows), 2))
        verdict = rule.accept(draft, scores(target, draft), sampling, torch.full((len(rows),), START))
        greedy = [i for i, row in enumerate(rows) if row != 1]
        assert verdict.emitted(draft)[greedy, 0].tolist() == [0] * len(greedy)
