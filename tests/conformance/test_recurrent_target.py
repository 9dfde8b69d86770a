"""A target with recurrent state instead of a cache keeps to the same contract."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from specdec.target import Target, TargetSpec
from specdec.testing import Echo, RandomTree, assert_conforms, assert_target_conforms
from specdec.types import Draft, Scores, Verdict

V, H = 37, 16


class Recurrent(Target):
    """h after a token is tanh(A h + e[token]); the states of a draft's nodes wait for the verdict."""

    def __init__(self, slots: int = 8) -> None:
        self.spec = TargetSpec(vocab_size=V, hidden_size=H, num_layers=1, max_len=256, slots=slots)
        dice = torch.Generator().manual_seed(2)
        self.mix = torch.randn(H, H, generator=dice, dtype=torch.float64) * 0.4
        self.embed = torch.randn(V, H, generator=dice, dtype=torch.float64)
        self.state = torch.zeros(slots, H, dtype=torch.float64)

    def open(self, slots: Tensor, prompts: Sequence[Tensor]) -> Scores:
        rows = []
        for slot, prompt in zip(slots.tolist(), prompts, strict=True):
            h = torch.zeros(H, dtype=torch.float64)
            for token in prompt.tolist():
                self.state[slot] = h = self._after(h, self.embed[token])
            rows.append(h)
        return Scores(self._logits(torch.stack(rows))[:, None])

    def score(self, slots: Tensor, lengths: Tensor, draft: Draft) -> Scores:
        return Scores(self._logits(self._states(slots, draft)))

    def commit(self, slots: Tensor, lengths: Tensor, draft: Draft, verdict: Verdict) -> None:
        last = verdict.path.gather(1, verdict.accepted[:, None])[:, 0]
        self.state[slots] = self._states(slots, draft)[torch.arange(len(slots)), last]

    def close(self, slots: Tensor) -> None:
        self.state[slots] = torch.nan

    def _states(self, slots: Tensor, draft: Draft) -> Tensor:
        rows = torch.arange(len(slots))
        before = self.state[slots]
        states: list[Tensor] = []
        for i in range(draft.nodes):
            parent = draft.parents[:, i].clamp(min=0)
            h = torch.stack(states, 1)[rows, parent] if i else before
            states.append(self._after(h, self.embed[draft.tokens[:, i]]))
        return torch.stack(states, 1)

    def _after(self, h: Tensor, x: Tensor) -> Tensor:
        return torch.tanh((h[..., None, :] * self.mix).sum(-1) + x)

    def _logits(self, h: Tensor) -> Tensor:
        return ((h[..., None, :] * self.embed).sum(-1) * 1.5).to(torch.float32)


class NeverRolledBack(Recurrent):
    """Keeps the state after the whole draft, whatever was refused."""

    def commit(self, slots: Tensor, lengths: Tensor, draft: Draft, verdict: Verdict) -> None:
        self.state[slots] = self._states(slots, draft)[:, -1]


def test_recurrent_state_is_rolled_back_to_any_node() -> None:
    """State that was not rolled back after a partial acceptance: healthy acceptance, corrupt text."""
    assert_target_conforms(Recurrent)
    assert_conforms(lambda target: RandomTree(narrow=4), target=Recurrent, budgets=(5,), max_tokens=8)


@pytest.mark.parametrize("rate", [0.3, 0.8])
def test_recurrent_state_is_rolled_back_within_accepted_runs(rate: float) -> None:
    from specdec import Engine
    from specdec.testing.conformance import PROMPTS

    plain = Engine(Recurrent(), "none").generate(PROMPTS, max_tokens=30)
    answers = {tuple(prompt): one.tokens for prompt, one in zip(PROMPTS, plain, strict=True)}
    got = Engine(Recurrent(), Echo(answers, rate=rate), budget=6).generate(PROMPTS, max_tokens=30)
    assert [one.tokens for one in got] == [one.tokens for one in plain]


def test_state_that_is_not_rolled_back_is_found_out() -> None:
    with pytest.raises(AssertionError, match="the cache after the committed tree path"):
        assert_target_conforms(NeverRolledBack)
    with pytest.raises(AssertionError, match="as plain decoding gives"):
        assert_conforms(lambda target: RandomTree(narrow=4), target=NeverRolledBack, budgets=(5,), max_tokens=8)
