"""Speculative sampling in closed form, in float64 and without a draw: the oracle of the rejection rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

Outcome = tuple[int, int]


def outcomes(tokens: list[int], parents: list[int], p: Tensor, q: list[Tensor]) -> dict[Outcome, float]:
    """Return the chance that a draft ends at a node and a token follows: {(node, token): probability}.

    p [V, V] is the target after each token; q[i] is what node i was drawn from.
    """
    found: dict[Outcome, float] = defaultdict(float)

    def walk(at: int, weight: float) -> None:
        left = p[tokens[at]]
        for child in (i for i in range(1, len(tokens)) if parents[i] == at):
            x = tokens[child]
            passes = min(1.0, float(left[x] / q[child][x]))
            walk(child, weight * passes)
            weight *= 1.0 - passes
            if weight <= 0:
                return
            left = (left - q[child]).clamp(min=0)
            left = left / left.sum()
        for token, share in enumerate(left.tolist()):
            found[at, token] += weight * share

    walk(0, 1.0)
    return dict(found)


def drafts(q: Tensor, parents: list[int], replacement: bool) -> Iterator[tuple[list[int], list[Tensor], float]]:
    """Yield every draft from the anchor 0: its tokens, what each was drawn from, its probability."""
    vocab = q.shape[0]
    for drawn in product(range(vocab), repeat=len(parents) - 1):
        tokens, sources, weight = [0, *drawn], [torch.zeros(vocab, dtype=q.dtype)], 1.0
        for i in range(1, len(parents)):
            source = q[tokens[parents[i]]].clone()
            if not replacement:
                for j in range(1, i):
                    if parents[j] == parents[i]:
                        source[tokens[j]] = 0.0
            source = source / source.sum()
            sources.append(source)
            weight *= float(source[tokens[i]])
        if weight > 0:
            yield tokens, sources, weight


def first_two(tokens: list[int], parents: list[int], p: Tensor, found: dict[Outcome, float]) -> Tensor:
    """Return how the first two tokens are distributed, where the target draws a missing second: [V, V]."""
    joint = torch.zeros_like(p)
    for (node, following), weight in found.items():
        path = []
        while node:
            path.insert(0, tokens[node])
            node = parents[node]
        path.append(following)
        if len(path) == 1:
            joint[path[0]] += weight * p[path[0]]
        else:
            joint[path[0], path[1]] += weight
    return joint
