"""Above temperature 0: a seed decides the tokens whatever drafts; without one, they are distributed as the server's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
import sglang_host as sh
from prompts import TEXTS
from scipy.stats import chi2_contingency

pytestmark = pytest.mark.slow

Start = Callable[..., AbstractContextManager[sh.Server]]
_SAMPLES, _RARE = 1200, 10
#: Drafters and budgets, the first of which drafts nothing.
SERVED = [("none", 1), ("ngram", 9), ("draft_model", 5), ("forked:draft_model", 6)]


@pytest.fixture(scope="module")
def servers(start: Start, models: Path) -> Iterator[dict[str, sh.Server]]:
    with ExitStack() as stack:
        made = {}
        for drafter, budget in SERVED:
            flags = ["--speculative-algorithm", "SPECDEC", "--speculative-num-draft-tokens", str(budget)]
            if "draft_model" in drafter:
                flags += ["--speculative-draft-model-path", str(models / "target")]
            made[drafter] = stack.enter_context(start(*flags, drafter=drafter))
        yield made


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 20, "top_p": 0.9}, {"min_p": 0.02, "frequency_penalty": 0.4}], ids=["", "filters", "more"]
)
def test_a_seed_decides(servers: dict[str, sh.Server], options: dict[str, float]) -> None:
    sampling = {"temperature": 0.8, "sampling_seed": 7, "max_new_tokens": 24, **options}
    told = {name: [a["output_ids"] for a in server.all(TEXTS, **sampling)] for name, server in servers.items()}
    for name, ids in told.items():
        assert ids == told["none"], name
    other = servers["none"].generate(TEXTS[0], **sampling | {"sampling_seed": 8})["output_ids"]
    assert other != told["none"][0]


@pytest.mark.parametrize("drafter", ["draft_model", "forked:draft_model"])
def test_distribution(plain: sh.Server, servers: dict[str, sh.Server], drafter: str) -> None:
    """Three tokens of three candidates each, many times: ours and the server's own are one distribution."""
    sampling = {"temperature": 0.9, "top_k": 3, "max_new_tokens": 3, "ignore_eos": True}
    texts = [TEXTS[1]] * _SAMPLES
    counts = [
        Counter(tuple(a["output_ids"]) for a in server.all(texts, at_once=16, **sampling))
        for server in (plain, servers[drafter])
    ]
    kinds = [kind for kind in counts[0] | counts[1] if counts[0][kind] + counts[1][kind] >= _RARE]
    rest = [_SAMPLES - sum(count[kind] for kind in kinds) for count in counts]
    table = [
        [count[kind] for kind in kinds] + ([left] if any(rest) else [])
        for count, left in zip(counts, rest, strict=True)
    ]
    assert len(kinds) >= 8
    assert chi2_contingency(table).pvalue > 1e-4
    shifted = [table[0], table[0][1:] + table[0][:1]]
    assert chi2_contingency(shifted).pvalue < 1e-4  # the samples are enough to see a difference
