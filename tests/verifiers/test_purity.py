"""Rules read and return tensors: no host sync, no copy from the host, no write into what they were given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import pytest
import torch
from rule_checks import CHAIN, TREE, Chosen, Drawn, scores, table
from specdec_verifiers.greedy import Greedy
from specdec_verifiers.match import Match
from specdec_verifiers.rejection import Rejection
from specdec_verifiers.tree_rejection import TreeRejection
from specdec_verifiers.typical import Typical
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from specdec import Draft, Sampling, SamplingParams, Scores, Verifier

ROWS = 6
RULES = [Greedy(), Match(), Rejection(), TreeRejection(), Typical()]
KINDS = {
    "greedy": [SamplingParams()],
    "hot": [SamplingParams(temperature=1.0)],
    "top_k": [SamplingParams(temperature=1.0, top_k=3)],
    "mixed": [SamplingParams(), SamplingParams(temperature=0.8, top_k=4, top_p=0.9, min_p=0.01)],
}
Inputs = tuple[Draft, Scores, Sampling, Tensor]


def _inputs(rule: Verifier, kind: str, stated: bool) -> Inputs:
    target = table(8, 51)
    shape = CHAIN[3] if rule.chains_only else TREE[2]
    drafter = (Drawn if stated else Chosen)(target.softmax(-1), shape)
    draft = drafter.draft(torch.zeros(ROWS, dtype=torch.int64), torch.Generator().manual_seed(1))
    kinds = KINDS[kind]
    sampling = Sampling.of([kinds[row % len(kinds)] for row in range(ROWS)], range(ROWS))
    return draft, scores(target, draft), sampling, torch.arange(ROWS) + 3


def _tensors(inputs: Inputs) -> list[Tensor]:
    draft, scored, sampling, lengths = inputs
    found = [getattr(part, f.name) for part in (draft, scored, sampling) for f in fields(part)]
    return [value for value in [*found, lengths] if isinstance(value, Tensor)]


def _faked(mode: FakeTensorMode, part: Any) -> Any:
    if isinstance(part, Tensor):
        return mode.from_tensor(part.clone())
    values = {f.name: getattr(part, f.name) for f in fields(part)}
    return type(part)(**{k: _faked(mode, v) if isinstance(v, Tensor) else v for k, v in values.items()})


class NoHost(TorchFunctionMode):
    """Refuses what reads a value from the device or copies one to it; a graph capture refuses the same."""

    names = frozenset({"tensor", "as_tensor", "from_numpy", "item", "tolist", "numpy", "cpu", "nonzero", "__bool__"})

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        assert name not in self.names, f"{name} in a rule"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("stated", [True, False], ids=["q", "point-mass"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_rule_reads_no_value(rule: Verifier, kind: str, stated: bool) -> None:
    """Fake tensors have shapes and no values: .item(), `if tensor` and boolean indexing raise."""
    draft, scored, sampling, lengths = _inputs(rule, kind, stated)
    mode = FakeTensorMode()
    faked = [_faked(mode, part) for part in (draft, scored, sampling, lengths)]
    with mode:
        verdict = rule.accept(*faked)
    assert [verdict.path.shape, verdict.accepted.shape, verdict.next_token.shape] == [
        draft.tokens.shape,
        lengths.shape,
        lengths.shape,
    ]


@pytest.mark.parametrize("kind", ["greedy", "hot", "top_k"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_rule_copies_nothing_from_the_host(rule: Verifier, kind: str) -> None:
    """`torch.tensor` with a CUDA device copies from pageable memory, which a graph capture refuses."""
    inputs = _inputs(rule, kind, stated=True)
    with NoHost():
        rule.accept(*inputs)


@pytest.mark.parametrize("stated", [True, False], ids=["q", "point-mass"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_rule_writes_into_none_of_its_inputs(rule: Verifier, kind: str, stated: bool) -> None:
    inputs = _inputs(rule, kind, stated)
    before = [(tensor.clone(), tensor._version) for tensor in _tensors(inputs)]
    rule.accept(*inputs)
    for tensor, (value, version) in zip(_tensors(inputs), before, strict=True):
        assert tensor._version == version
        assert torch.equal(tensor, value)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_rule_gives_the_same_verdict_twice(rule: Verifier) -> None:
    inputs = _inputs(rule, "mixed", stated=True)
    first, second = rule.accept(*inputs), rule.accept(*inputs)
    for name in ("path", "accepted", "next_token"):
        assert torch.equal(getattr(first, name), getattr(second, name))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_verdict_holds_int64(rule: Verifier) -> None:
    verdict = rule.accept(*_inputs(rule, "hot", stated=True))
    assert {verdict.path.dtype, verdict.accepted.dtype, verdict.next_token.dtype} == {torch.int64}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_unused_nodes_change_no_verdict(rule: Verifier) -> None:
    draft, scored, sampling, lengths = _inputs(rule, "hot", stated=True)
    wide = draft.padded(draft.nodes + 3)
    noise = torch.randn(ROWS, 3, 8, generator=torch.Generator().manual_seed(2))
    more = rule.accept(wide, Scores(torch.cat([scored.logits, noise], 1)), sampling, lengths)
    less = rule.accept(draft, scored, sampling, lengths)
    assert torch.equal(more.emitted(wide)[:, : draft.nodes], less.emitted(draft))
