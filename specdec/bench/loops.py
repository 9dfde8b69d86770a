"""Telling outputs that repeat themselves from those that say something."""

from __future__ import annotations

from collections.abc import Sequence

_LONGEST_PERIOD = 64
_PERIODS = 3
_LEAST_RUN = 24
_GRAM = 8
_LEAST_TOKENS = 48


def loops(tokens: Sequence[int]) -> bool:
    """Whether the output repeats itself so much that a look-up drafter has it too easy.

    Either some stretch repeats one block three times or more, over two dozen tokens at least, or half of all runs of
    eight tokens in a longer output were there before.
    """
    return _longest_repetition(tokens) >= _LEAST_RUN or _repeated_share(tokens) > 0.5


def _longest_repetition(tokens: Sequence[int]) -> int:
    """Tokens of the longest stretch that repeats one block at least `_PERIODS` times."""
    longest = 0
    for period in range(1, min(_LONGEST_PERIOD, len(tokens) // _PERIODS) + 1):
        run = 0
        for i in range(period, len(tokens)):
            run = run + 1 if tokens[i] == tokens[i - period] else 0
            if run + period >= _PERIODS * period:
                longest = max(longest, run + period)
    return longest


def _repeated_share(tokens: Sequence[int]) -> float:
    """Share of runs of `_GRAM` tokens that occurred before; 0 for short outputs."""
    if len(tokens) < _LEAST_TOKENS:
        return 0.0
    grams = [tuple(tokens[i : i + _GRAM]) for i in range(len(tokens) - _GRAM + 1)]
    return 1 - len(set(grams)) / len(grams)
