"""What a round lets through of a draft: nothing outside the vocabulary, nothing that cannot count."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specdec import Context, Draft, Drafter, Sampling
from specdec.drafter import NoDraft
from specdec.round import propose


class Listed(Drafter):
    """Proposes what it was given."""

    def __init__(self, tokens: list[list[int]], parents: list[list[int]] | None = None) -> None:
        self.tokens, self.parents, self.calls = torch.tensor(tokens), parents, 0

    def propose(self, ctx: Context) -> Draft:
        self.calls += 1
        draft = Draft.chain(ctx.anchor, self.tokens)
        return draft if self.parents is None else Draft(draft.tokens, torch.tensor(self.parents))


def _context(rows: int, budget: int = 8, room: Tensor | None = None) -> Context:
    tail = torch.full((rows, 1), 3)
    return Context(torch.arange(rows), torch.ones(rows).long(), tail, budget, Sampling.uniform(rows), room=room)


@pytest.mark.parametrize(
    ("tokens", "used"),
    [([-1, -1, -1], 0), ([5, -1, -1], 1), ([5, 64, 6], 1), ([63, 0, 68], 2), ([5, 6, 7], 3), ([64, 5, 6], 0)],
)
def test_ids_outside_the_vocabulary_are_never_submitted(tokens: list[int], used: int) -> None:
    """Padding of -1, and ids of a drafter whose vocabulary is padded further than the target's."""
    draft = propose(Listed([tokens]), _context(1), vocab_size=64)
    assert draft.used.tolist() == [[True] + [True] * used + [False] * (3 - used)]
    assert bool(((draft.tokens >= 0) & (draft.tokens < 64)).all())


def test_what_hangs_below_an_id_outside_the_vocabulary_goes_with_it() -> None:
    draft = propose(Listed([[99, 5, 6]], [[-1, 0, 0, 1]]), _context(1), vocab_size=64)
    assert draft.parents.tolist() == [[-1, -1, 0, -1]]


def test_nodes_deeper_than_the_room_of_their_row_are_dropped() -> None:
    room = torch.tensor([0, 1, 3, 9])
    draft = propose(Listed([[5, 6, 7]] * 4), _context(4, room=room), vocab_size=64)
    assert (draft.used.sum(-1) - 1).tolist() == [0, 1, 3, 3]


def test_at_budget_1_the_drafter_is_not_called() -> None:
    drafter = Listed([[5]])
    assert propose(drafter, _context(1, budget=1), vocab_size=64).nodes == 1
    assert drafter.calls == 0


def test_no_draft_proposes_the_anchor_alone() -> None:
    draft = NoDraft().propose(_context(2))
    assert (draft.tokens.tolist(), draft.nodes) == ([[3], [3]], 1)
