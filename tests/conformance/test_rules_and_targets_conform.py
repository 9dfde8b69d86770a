"""Every registered rule, and the targets of the test kit, keep their contracts."""

from __future__ import annotations

import pytest
import torch

from specdec import registry
from specdec.testing import RandomTree, TableTarget, TinyTarget, assert_conforms, assert_rule_conforms
from specdec.testing.conformance import assert_target_conforms

RULES = registry.names(registry.VERIFIERS)


def table() -> TableTarget:
    """Logits that depend on every token of the path, in order."""

    def logits(tokens: list[int]) -> torch.Tensor:
        key = 0
        for token in tokens:
            key = (key * 31 + token + 1) % 10007
        return torch.randn(13, generator=torch.Generator().manual_seed(key)) * 3

    return TableTarget(logits, vocab_size=13)


@pytest.mark.parametrize("name", RULES)
def test_every_registered_rule_conforms(name: str) -> None:
    assert_rule_conforms(registry.build(registry.VERIFIERS, name))


@pytest.mark.parametrize("name", [n for n in RULES if n not in ("rejection", "typical")])
def test_every_exact_rule_over_trees_is_plain_decoding_when_greedy(name: str) -> None:
    assert_conforms(
        lambda target: RandomTree(narrow=4), verifier=name, temperatures=(0.0,), budgets=(5,), max_tokens=10
    )


@pytest.mark.parametrize("make", [TinyTarget, table], ids=["tiny", "table"])
def test_the_kit_s_targets_conform(make: object) -> None:
    assert_target_conforms(make)  # type: ignore[arg-type]  # both make a Target


def test_a_target_that_taps_layers_conforms() -> None:
    assert_target_conforms(lambda: TinyTarget(taps=(0, 1)))
