"""Match emits what plain decoding with the same seed does, whatever the draft."""

from __future__ import annotations

import pytest
import torch
from rule_checks import (
    CHAIN,
    START,
    TREE,
    Chosen,
    Drawn,
    decode,
    equality_ok,
    plain,
    sampling_of,
    scores,
    table,
)
from specdec_verifiers.greedy import Greedy
from specdec_verifiers.match import Match

from specdec import Draft, Sampling, SamplingParams

PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.3),
    SamplingParams(temperature=1.0, top_k=3, top_p=0.9, min_p=0.01),
]


def _random_tree(rows: int, nodes: int, vocab: int, generator: torch.Generator) -> Draft:
    """Parents-first trees with unused nodes and repeated siblings."""
    parents = torch.full((rows, nodes), -1)
    for i in range(1, nodes):
        up = torch.randint(0, i, (rows,), generator=generator)
        exists = (up == 0) | (parents.gather(1, up[:, None])[:, 0] >= 0)
        skipped = torch.rand(rows, generator=generator) < 0.2
        parents[:, i] = torch.where(exists & ~skipped, up, -1)
    return Draft(torch.randint(0, vocab, (rows, nodes), generator=generator), parents)


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "cool", "hot", "filtered"])
@pytest.mark.parametrize("shape", [*CHAIN.values(), *TREE.values()], ids=str)
def test_no_shape_of_draft_changes_a_token(shape: list[int], params: SamplingParams) -> None:
    target, sampling = table(8, 3), sampling_of(params, 24)
    near = (target + table(8, 4, 0.5)).softmax(-1)
    assert torch.equal(decode(Match(), target, Drawn(near, shape), sampling, 10), plain(target, sampling, 10))


@pytest.mark.parametrize("seed", range(5))
def test_no_random_tree_changes_a_token(seed: int) -> None:
    """Trees with unused nodes and repeated siblings; the target continues what the verdict says was kept."""
    vocab, rows, nodes = 4, 200, 9
    target, sampling = table(vocab, 31), sampling_of(PARAMS[1], rows)
    draft = _random_tree(rows, nodes, vocab, torch.Generator().manual_seed(seed))
    draft = Draft(torch.cat([torch.zeros(rows, 1, dtype=torch.int64), draft.tokens[:, 1:]], 1), draft.parents)
    lengths = torch.full((rows,), START)
    verdict = Match().accept(draft, scores(target, draft), sampling, lengths)
    emitted, wanted = verdict.emitted(draft), plain(target, sampling, nodes)
    kept = torch.arange(nodes) <= verdict.accepted[:, None]
    assert torch.equal(emitted, torch.where(kept, wanted, -1))


def test_the_longest_matching_path_is_kept() -> None:
    """Against a walk in Python that follows the plain continuation down the tree."""
    vocab, rows, nodes = 3, 300, 10
    target, sampling = table(vocab, 32), sampling_of(PARAMS[1], rows)
    draft = _random_tree(rows, nodes, vocab, torch.Generator().manual_seed(9))
    draft = Draft(torch.cat([torch.zeros(rows, 1, dtype=torch.int64), draft.tokens[:, 1:]], 1), draft.parents)
    verdict = Match().accept(draft, scores(target, draft), sampling, torch.full((rows,), START))
    wanted = plain(target, sampling, nodes).tolist()
    for row in range(rows):
        # Of twins the first is kept, so only its children can follow.
        at, depth = 0, 0
        while True:
            nexts = [
                i
                for i in range(1, nodes)
                if draft.parents[row, i] == at and int(draft.tokens[row, i]) == wanted[row][depth]
            ]
            if not nexts:
                break
            at, depth = nexts[0], depth + 1
        assert int(verdict.accepted[row]) == depth


def test_a_row_does_not_depend_on_its_batch() -> None:
    vocab, rows = 8, 16
    target = table(vocab, 33)
    kinds = [PARAMS[row % 4] for row in range(rows)]
    seeds = [row * 31 for row in range(rows)]
    anchor = torch.zeros(rows, dtype=torch.int64)
    draft = Drawn(target.softmax(-1), TREE[3]).draft(anchor, torch.Generator().manual_seed(1))
    lengths = torch.arange(rows) + 1
    together = Match().accept(draft, scores(target, draft), Sampling.of(kinds, seeds), lengths).emitted(draft)
    for row in range(rows):
        alone = Draft(draft.tokens[row : row + 1], draft.parents[row : row + 1])
        sampling = Sampling.of([kinds[row]], [seeds[row]])
        one = Match().accept(alone, scores(target, alone), sampling, lengths[row : row + 1]).emitted(alone)
        assert torch.equal(one[0], together[row])


def test_a_draft_with_the_same_noise_is_kept_whole_where_the_models_agree() -> None:
    """A drafter that is the target and draws with `Sampling.pick` is never refused."""
    target, sampling = table(8, 34), sampling_of(PARAMS[1], 50)
    tokens = plain(target, sampling, 4)
    draft = Draft.chain(torch.zeros(50, dtype=torch.int64), tokens)
    verdict = Match().accept(draft, scores(target, draft), sampling, torch.full((50,), START))
    assert bool((verdict.accepted == 4).all())


def test_repeated_siblings_keep_the_first_twin_only() -> None:
    target, sampling = table(8, 35), Sampling.uniform(1)
    best = int(target[0].argmax())
    draft = Draft(torch.tensor([[0, best, best, best]]), torch.tensor([[-1, 0, 0, 0]]))
    verdict = Match().accept(draft, scores(target, draft), sampling, torch.tensor([START]))
    assert verdict.path.tolist() == [[0, 1, -1, -1]]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_match_passes_the_equality_check(temperature: float) -> None:
    assert equality_ok(Match(), temperature)


@pytest.mark.parametrize("shape", [CHAIN[4], TREE[3]], ids=["chain", "tree"])
def test_greedy_equals_match_at_temperature_0(shape: list[int]) -> None:
    target, sampling = table(8, 36), Sampling.uniform(30)
    drafter = Chosen((target + table(8, 37, 0.5)).softmax(-1), shape, twins=True)
    greedy = decode(Greedy(), target, drafter, sampling, 10)
    assert torch.equal(greedy, decode(Match(), target, drafter, sampling, 10))
