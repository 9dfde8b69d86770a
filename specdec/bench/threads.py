"""How many threads torch should have here and now."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specdec.bench.runners import Runner

_TOKENS = 6


def settle(runner: Runner, ids: Sequence[int]) -> int:
    """Set torch to the quicker of its default and one thread, by a short trial, and return it.

    On a machine whose cores others use too, threads that wait for each other can be many times slower than one.
    """
    most = torch.get_num_threads()
    seconds = {}
    for threads in dict.fromkeys((1, most)):
        torch.set_num_threads(threads)
        runner.run(ids, 2, 0.0, 0)
        seconds[threads] = runner.run(ids, _TOKENS, 0.0, 0).seconds
    best = min(seconds, key=lambda threads: seconds[threads])
    torch.set_num_threads(best)
    return best
