"""The rejection rules against closed form: every draft of a small vocabulary, none left to chance."""

from __future__ import annotations

import pytest
import torch
from enumeration import drafts, first_two, outcomes
from rule_checks import HOT, START, fits, probabilities, sampling_of, scores, table
from specdec_verifiers.rejection import Rejection
from specdec_verifiers.tree_rejection import TreeRejection

from specdec import Draft, SamplingParams, Scores, Verifier

CHAIN = [-1, 0, 1]
PAIR = [-1, 0, 0]
FORK = [-1, 0, 0, 1]
ROWS = 2000

CASES = [
    pytest.param(Rejection(), CHAIN, True, 3, id="rejection-chain-3"),
    pytest.param(Rejection(), CHAIN, True, 4, id="rejection-chain-4"),
    pytest.param(TreeRejection(), CHAIN, True, 4, id="tree-chain-4"),
    pytest.param(TreeRejection(), PAIR, True, 3, id="tree-siblings-3"),
    pytest.param(TreeRejection(), PAIR, False, 4, id="tree-siblings-without-replacement-4"),
    pytest.param(TreeRejection(), FORK, True, 3, id="tree-fork-3"),
    pytest.param(TreeRejection(), FORK, False, 3, id="tree-fork-without-replacement-3"),
]


@pytest.mark.parametrize(("rule", "parents", "replacement", "vocab"), CASES)
def test_the_closed_form_summed_over_all_drafts_is_the_target(
    rule: Verifier, parents: list[int], replacement: bool, vocab: int
) -> None:
    """The oracle itself: no draw, so no false alarm; the tolerance covers the rounding of the products."""
    p = probabilities(table(vocab, 11), HOT)
    q = table(vocab, 12).double().softmax(-1)
    joint = torch.zeros_like(p)
    for tokens, sources, weight in drafts(q, parents, replacement):
        joint += weight * first_two(tokens, parents, p, outcomes(tokens, parents, p, sources))
    torch.testing.assert_close(joint, p[0][:, None] * p, rtol=0, atol=1e-12)


@pytest.mark.parametrize("params", [HOT, SamplingParams(temperature=0.6, top_k=2)], ids=["hot", "filtered"])
@pytest.mark.parametrize(("rule", "parents", "replacement", "vocab"), CASES)
def test_each_draft_ends_where_the_closed_form_says(
    rule: Verifier, parents: list[int], replacement: bool, vocab: int, params: SamplingParams
) -> None:
    """Frequencies of (last node, next token) given each draft, which with the sum above is losslessness.

    There are 14 cases of 27 drafts at most, each tested at 1e-4: under fresh seeds a sound rule fails somewhere
    with a chance under 14 * 27 * 1e-4 = 4 %. Seeds are fixed, so a sound rule that passes once passes always.
    """
    target = table(vocab, 11)
    p = probabilities(target, params)
    q = table(vocab, 12).double().softmax(-1)
    known = list(drafts(q, parents, replacement))
    rows = len(known) * ROWS
    draft = Draft(
        torch.tensor([tokens for tokens, _, _ in known]).repeat_interleave(ROWS, 0),
        torch.tensor(parents).expand(rows, -1),
        torch.stack([torch.stack(sources) for _, sources, _ in known]).float().repeat_interleave(ROWS, 0),
        linear=parents == CHAIN,
    )
    lengths = torch.full((rows,), START)
    verdict = rule.accept(draft, scores(target, draft), sampling_of(params, rows), lengths)
    last = verdict.path.gather(1, verdict.accepted[:, None])[:, 0]
    seen = (last * vocab + verdict.next_token).view(len(known), ROWS)
    for (tokens, sources, _), ends in zip(known, seen, strict=True):
        expected = torch.zeros(len(parents) * vocab)
        for (node, token), weight in outcomes(tokens, parents, p, sources).items():
            expected[node * vocab + token] = weight
        assert fits(torch.bincount(ends, minlength=expected.numel()), expected), tokens


@pytest.mark.parametrize("sharpness", [0.3, 1.5])
@pytest.mark.parametrize("stated", [True, False], ids=["q", "point-mass"])
def test_tree_rejection_on_a_chain_emits_the_tokens_of_rejection(stated: bool, sharpness: float) -> None:
    vocab, rows, k = 9, 3000, 4
    generator = torch.Generator().manual_seed(5)
    target = table(vocab, 21, sharpness)
    q = torch.rand(rows, k, vocab, generator=generator) ** 3
    q = q / q.sum(-1, keepdim=True)
    tokens = torch.multinomial(q.view(-1, vocab), 1, generator=generator).view(rows, k)
    counts = torch.arange(rows) % (k + 1)
    draft = Draft.chain(torch.zeros(rows, dtype=torch.int64), tokens, q if stated else None, counts)
    sampling, lengths = sampling_of(HOT, rows), torch.arange(rows) + 1
    chain = Rejection().accept(draft, scores(target, draft), sampling, lengths).emitted(draft)
    tree = TreeRejection().accept(draft, scores(target, draft), sampling, lengths).emitted(draft)
    assert torch.equal(chain, tree)


@pytest.mark.parametrize("rule", [Rejection(), TreeRejection()], ids=["rejection", "tree_rejection"])
def test_a_draft_drawn_from_the_target_is_kept_whole(rule: Verifier) -> None:
    """Where q is p every ratio is 1, and a uniform is below 1."""
    vocab, rows, k = 6, 2000, 3
    generator = torch.Generator().manual_seed(6)
    target = table(vocab, 22)
    p = probabilities(target, HOT).float()
    tokens = [torch.zeros(rows, dtype=torch.int64)]
    for _ in range(k):
        tokens.append(torch.multinomial(p[tokens[-1]], 1, generator=generator)[:, 0])
    parents = torch.stack(tokens[:-1], 1)
    sampling = sampling_of(HOT, rows)
    draft = Draft.chain(tokens[0], torch.stack(tokens[1:], 1), sampling.distribution(target[parents]))
    verdict = rule.accept(draft, scores(target, draft), sampling, torch.full((rows,), START))
    assert bool((verdict.accepted == k).all())


@pytest.mark.parametrize("rule", [Rejection(), TreeRejection()], ids=["rejection", "tree_rejection"])
def test_a_token_that_the_target_rules_out_is_never_kept(rule: Verifier) -> None:
    vocab, rows = 6, 2000
    target = table(vocab, 23)
    target[:, 1::2] = -torch.inf
    q = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, 1.0]).expand(rows, 2, vocab) / 3
    tokens = torch.tensor([1, 3]).expand(rows, 2)
    draft = Draft.chain(torch.zeros(rows, dtype=torch.int64), tokens, q)
    verdict = rule.accept(draft, scores(target, draft), sampling_of(HOT, rows), torch.full((rows,), START))
    assert bool((verdict.accepted == 0).all())
    assert bool((verdict.next_token % 2 == 0).all())


@pytest.mark.parametrize("rule", [Rejection(), TreeRejection()], ids=["rejection", "tree_rejection"])
def test_a_residual_that_rounding_emptied_falls_back_to_the_target(rule: Verifier) -> None:
    """A float32 q may round to 1 at one token and still have drawn another; the residual then has no mass.

    An argmax over nothing would emit token 0, which the target may rule out.
    """
    logits = torch.tensor([0.0, 0.0, 5.0, 0.0]).expand(1, 2, 4)
    q = torch.tensor([[[0.0, 1e-12, 1.0, 0.0]]])
    draft = Draft.chain(torch.tensor([3]), torch.tensor([[1]]), q)
    verdict = rule.accept(draft, Scores(logits), sampling_of(SamplingParams(), 1), torch.tensor([START]))
    assert verdict.next_token.tolist() == [2]


@pytest.mark.parametrize("rule", [Rejection(), TreeRejection()], ids=["rejection", "tree_rejection"])
def test_a_draft_of_the_anchor_alone_is_a_draw_from_the_target(rule: Verifier) -> None:
    """A drafter that knows nothing may still state an empty q; the chance of a false alarm is 1e-4."""
    vocab, rows = 8, 8000
    target = table(vocab, 24)
    anchor = torch.zeros(rows, dtype=torch.int64)
    draft = Draft.chain(anchor, torch.empty(rows, 0, dtype=torch.int64), torch.empty(rows, 0, vocab))
    verdict = rule.accept(draft, scores(target, draft), sampling_of(HOT, rows), torch.full((rows,), START))
    assert fits(torch.bincount(verdict.next_token, minlength=vocab), probabilities(target, HOT)[0])
