"""Every planted defect is caught by a named check: a kit that nobody has seen fail is no evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import specdec_verifiers.rejection as rejection_module
import torch
from rule_checks import Relayed, distribution_ok, equality_ok
from specdec_verifiers.match import Match
from specdec_verifiers.rejection import Rejection
from specdec_verifiers.tree_rejection import TreeRejection
from torch import Tensor

from specdec import Draft, Sampling, Scores, Verdict, Verifier, noise
from specdec.verifier import verdict_of

Check = Callable[[Verifier], bool]
EQUAL = equality_ok
EQUAL_HOT = partial(equality_ok, temperature=0.7)
FITS = distribution_ok
SOUND = noise.uniform


class AcceptsEverything(Relayed):
    def accept(self, draft: Draft, scores: Scores, sampling: Sampling, lengths: Tensor) -> Verdict:
        drawn = sampling.pick(scores.logits, lengths[:, None] + draft.depth)
        return verdict_of(draft, draft.used, drawn)


class MisreportsQ(Relayed):
    """As a drafter would that says uniform and draws from something else."""

    def accept(self, draft: Draft, scores: Scores, sampling: Sampling, lengths: Tensor) -> Verdict:
        q = torch.full_like(scores.logits, 1 / scores.logits.shape[-1])
        return super().accept(replace(draft, q=q), scores, sampling, lengths)


class TreatsChosenAsDrawn(Relayed):
    """A chosen token with the soft distribution it was the best of."""

    def accept(self, draft: Draft, scores: Scores, sampling: Sampling, lengths: Tensor) -> Verdict:
        before = scores.logits.gather(1, draft.parents.clamp(min=0)[..., None].expand_as(scores.logits))
        soft = draft if draft.q is not None else replace(draft, q=before.softmax(-1))
        return super().accept(soft, scores, sampling, lengths)


class ShiftsLogitsByANode(Relayed):
    def accept(self, draft: Draft, scores: Scores, sampling: Sampling, lengths: Tensor) -> Verdict:
        return super().accept(draft, Scores(scores.logits.roll(1, 1)), sampling, lengths)


class KeepsTheArgmaxElseSamples(Relayed):
    def accept(self, draft: Draft, scores: Scores, sampling: Sampling, lengths: Tensor) -> Verdict:
        best = scores.logits.argmax(-1)
        drawn = sampling.pick(scores.logits, lengths[:, None] + draft.depth)
        return verdict_of(draft, draft.tokens == best.gather(1, draft.parents.clamp(min=0)), drawn)


class CountsTwins(Relayed):
    """Keeps a repeated sibling beside its twin, so that the token comes out twice."""

    def accept(self, draft: Draft, scores: Scores, sampling: Sampling, lengths: Tensor) -> Verdict:
        verdict = super().accept(draft, scores, sampling, lengths)
        on_path = torch.zeros_like(draft.used).scatter(1, verdict.path.clamp(min=0), value=True)
        same = (draft.tokens[:, :, None] == draft.tokens[:, None]) & (
            draft.parents[:, :, None] == draft.parents[:, None]
        )
        kept = (same & on_path[:, None]).any(-1) & draft.used
        nodes = torch.arange(draft.nodes)
        order = torch.where(kept, nodes, draft.nodes).sort(-1).values
        path = torch.where(order == draft.nodes, -1, order)
        return Verdict(path, kept.sum(-1) - 1, verdict.next_token)


class RetriesTwins(Relayed):
    """Gives each sibling a chance against the whole target instead of what the earlier ones left."""

    def accept(self, draft: Draft, scores: Scores, sampling: Sampling, lengths: Tensor) -> Verdict:
        p = sampling.distribution(scores.logits)
        at, kept = torch.zeros_like(lengths), torch.zeros_like(draft.used)
        rows = torch.arange(p.shape[0])
        for i in range(1, draft.nodes):
            position = lengths + draft.depth[:, i] - 1
            u = noise.uniform(sampling.seed, position, torch.tensor([i]), noise.COIN)[:, 0]
            x = draft.tokens[:, i]
            q = torch.ones_like(u) if draft.q is None else draft.q[rows, i, x]
            passed = draft.used[:, i] & (draft.parents[:, i] == at) & (u * q <= p[rows, at, x])
            kept[:, i] = passed
            at = torch.where(passed, i, at)
        drawn = sampling.pick(scores.logits, lengths[:, None] + draft.depth)
        return verdict_of(draft, kept, drawn)


CAUGHT = [
    (AcceptsEverything(), EQUAL),
    (AcceptsEverything(), EQUAL_HOT),
    (AcceptsEverything(Rejection()), FITS),
    (AcceptsEverything(), FITS),
    (MisreportsQ(Rejection()), FITS),
    (MisreportsQ(TreeRejection()), FITS),
    (TreatsChosenAsDrawn(Rejection()), FITS),
    (TreatsChosenAsDrawn(TreeRejection()), FITS),
    (ShiftsLogitsByANode(), EQUAL),
    (ShiftsLogitsByANode(), EQUAL_HOT),
    (ShiftsLogitsByANode(Rejection()), EQUAL),
    (ShiftsLogitsByANode(Rejection()), FITS),
    (KeepsTheArgmaxElseSamples(), EQUAL_HOT),
    (KeepsTheArgmaxElseSamples(), FITS),
    (CountsTwins(), EQUAL),
    (CountsTwins(), EQUAL_HOT),
    (RetriesTwins(TreeRejection()), FITS),
]


def _name(value: object) -> str:
    if isinstance(value, Relayed):
        return f"{type(value).__name__}-{type(value.inner).__name__}"
    if isinstance(value, partial):
        return "equality_at_0.7"
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(("defect", "check"), CAUGHT, ids=_name)
def test_a_planted_defect_is_caught(defect: Verifier, check: Check) -> None:
    assert not check(defect)


def test_a_residual_that_does_not_subtract_q_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(p: Tensor, q: Tensor, draft: Draft, prefix: Verdict) -> Tensor:
        return p[torch.arange(p.shape[0]), prefix.accepted]

    monkeypatch.setattr(rejection_module, "residual", whole)
    assert not distribution_ok(Rejection())


def _halved(seed: Tensor, position: Tensor, ids: Tensor, stream: int = noise.SAMPLE) -> Tensor:
    """Draw as a hash does that shifts the sign bit in: no uniform passes 1/2."""
    return SOUND(seed, position, ids, stream) / 2


@pytest.mark.parametrize("rule", [Match(), Rejection(), TreeRejection()], ids=lambda rule: type(rule).__name__)
def test_noise_that_never_passes_a_half_is_caught(rule: Verifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "uniform", _halved)
    assert not distribution_ok(rule)


def test_equality_alone_does_not_catch_biased_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides draw from the same wrong noise and agree: this is why the distribution is tested too."""
    monkeypatch.setattr(noise, "uniform", _halved)
    assert equality_ok(Match(), temperature=0.7)


def test_a_coin_shared_by_siblings_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def shared(seed: Tensor, position: Tensor, ids: Tensor, stream: int = noise.SAMPLE) -> Tensor:
        return SOUND(seed, position, ids * 0 if stream == noise.COIN else ids, stream)

    monkeypatch.setattr(noise, "uniform", shared)
    assert not distribution_ok(TreeRejection())


def test_a_residual_draw_that_reuses_the_coin_of_the_token_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coin that refused a token is known to be large; a draw from the same stream would inherit that."""
    monkeypatch.setattr(noise, "RESIDUAL", noise.COIN)
    assert not distribution_ok(Rejection())


@pytest.mark.parametrize("rule", [Match(), Rejection(), TreeRejection()], ids=lambda rule: type(rule).__name__)
def test_an_undamaged_relay_passes_every_check(rule: Verifier) -> None:
    assert equality_ok(Relayed(rule))
    assert distribution_ok(Relayed(rule))
