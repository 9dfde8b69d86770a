"""The rule that never draws, and the one that is not exact."""

from __future__ import annotations

import math

import pytest
import torch
from rule_checks import (
    CHAIN,
    START,
    TREE,
    Drawn,
    decode,
    distribution_ok,
    equality_ok,
    plain,
    sampling_of,
    scores,
    table,
)
from specdec_verifiers.greedy import Greedy
from specdec_verifiers.match import Match
from specdec_verifiers.rejection import Rejection
from specdec_verifiers.tree_rejection import TreeRejection
from specdec_verifiers.typical import Typical

from specdec import Draft, OptionError, Sampling, SamplingParams, Verifier


def test_greedy_refuses_a_temperature_by_name() -> None:
    refusal = Greedy().refusal(SamplingParams(temperature=0.7))
    assert refusal is not None
    assert "temperature 0.7" in refusal


def test_greedy_serves_temperature_0() -> None:
    assert Greedy().refusal(SamplingParams(temperature=0.0, top_k=5)) is None


@pytest.mark.parametrize("rule", [Match(), Rejection(), TreeRejection(), Typical()], ids=lambda r: type(r).__name__)
def test_the_other_rules_refuse_no_temperature(rule: Verifier) -> None:
    assert rule.refusal(SamplingParams(temperature=1.3)) is None


@pytest.mark.parametrize(
    "rule", [Greedy(), Match(), Rejection(), TreeRejection(), Typical()], ids=lambda r: type(r).__name__
)
def test_every_rule_decodes_plainly_at_temperature_0(rule: Verifier) -> None:
    assert equality_ok(rule, temperature=0.0)


def test_typical_says_that_it_is_lossy() -> None:
    assert Typical.lossless is False


def test_the_other_rules_say_that_they_are_lossless() -> None:
    assert [rule.lossless for rule in (Greedy, Match, Rejection, TreeRejection)] == [True] * 4


def test_typical_is_caught_by_the_distribution_check() -> None:
    assert not distribution_ok(Typical())


def test_typical_keeps_rows_at_temperature_0_exact_in_a_mixed_batch() -> None:
    target, rows = table(8, 41), 60
    kinds = [SamplingParams(temperature=t) for t in (0.0, 1.0)] * (rows // 2)
    sampling = Sampling.of(kinds, range(rows))
    mixed = decode(Typical(), target, Drawn(target.softmax(-1), CHAIN[4]), sampling, 8)
    assert torch.equal(mixed[0::2], plain(target, sampling, 8)[0::2])


def test_typical_keeps_what_its_formula_says() -> None:
    """p(x) >= min(epsilon, delta * exp(-H)), node by node, on chains of random tokens."""
    target, rows, k = table(8, 42), 400, 3
    rule, sampling = Typical(epsilon=0.2, delta=0.3), sampling_of(SamplingParams(temperature=1.0), 400)
    tokens = torch.randint(0, 8, (rows, k), generator=torch.Generator().manual_seed(3))
    draft = Draft.chain(torch.zeros(rows, dtype=torch.int64), tokens)
    verdict = rule.accept(draft, scores(target, draft), sampling, torch.full((rows,), START))
    p = target.double().softmax(-1)
    for row, drafted in enumerate(tokens.tolist()):
        last, kept = 0, 0
        for x in drafted:
            entropy = -sum(v * math.log(v) for v in p[last].tolist())
            if float(p[last, x]) < min(0.2, 0.3 * math.exp(-entropy)):
                break
            last, kept = x, kept + 1
        assert int(verdict.accepted[row]) == kept


def test_typical_keeps_one_root_path_of_a_tree_with_many_typical_siblings() -> None:
    target, sampling = table(8, 43, 0.1), sampling_of(SamplingParams(temperature=1.0), 50)
    draft = Drawn(target.softmax(-1), TREE[3]).draft(torch.zeros(50, dtype=torch.int64), torch.Generator())
    verdict = Typical().accept(draft, scores(target, draft), sampling, torch.full((50,), START))
    up = draft.parents.gather(1, verdict.path.clamp(min=0))
    steps = torch.where(verdict.path[:, 1:] >= 0, up[:, 1:] == verdict.path[:, :-1], True)
    assert bool(steps.all())


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(0.0, 0.1), (-0.1, 0.1), (1.1, 0.1), (math.nan, 0.1), (0.3, 0.0), (0.3, -1), (0.3, math.nan)],
)
def test_typical_refuses_parameters_out_of_range(epsilon: float, delta: float) -> None:
    with pytest.raises(OptionError, match=rf"epsilon={epsilon}, delta={delta}"):
        Typical(epsilon, delta)
