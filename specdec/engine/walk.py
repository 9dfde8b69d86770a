"""A user's own logits processors, called once for each emitted token and in order, as plain decoding calls them.

A processor may keep state, so it must never see a draft that is then refused. The walk runs the rule one node
deeper at a time and calls the processors only where the path really goes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdec.engine.row import Row
from specdec.errors import ContractError
from specdec.types import Context, Draft, Scores
from specdec.verifier import Verifier


def walk(row: Row, index: int, ctx: Context, draft: Draft, logits: Tensor, verifier: Verifier) -> None:
    """Process the nodes on the accepted path of row `index`, pushing each token; writes logits [B, N, V]."""
    at = torch.tensor([index], device=logits.device)
    own = Draft(draft.tokens[at], draft.parents[at], None if draft.q is None else draft.q[at], linear=draft.linear)
    sampling, lengths = ctx.sampling.rows(at), ctx.lengths[at]
    node, depth = 0, 0
    row.walked = []
    while True:
        logits[index, node] = processed(row, logits[index, node])
        shallow = own.pruned(own.depth <= depth + 1)
        verdict = verifier.accept(shallow, Scores(logits[at]), sampling, lengths)
        if int(verdict.accepted) <= depth:
            row.walked += row.push([int(verdict.next_token)])
            return
        depth += 1
        node = int(verdict.path[0, depth])
        row.walked += row.push([int(own.tokens[0, node])])
        if row.finished:
            return


def processed(row: Row, logits: Tensor) -> Tensor:
    """Logits [V] after the row's own processors, called with all its tokens so far."""
    history = [*row.ids, *row.tokens]
    for processor in row.request.params.logits_processors:
        result = processor(history, logits)
        if not isinstance(result, Tensor) or result.shape != logits.shape:
            found = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise ContractError(
                f"logits processor {processor!r} returned {found}; a tensor of {tuple(logits.shape)} is needed."
            )
        logits = result
    return logits
