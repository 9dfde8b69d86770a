"""How deep a request's drafts are right, by what was seen of it and, until then, by a guess."""

from __future__ import annotations

from dataclasses import dataclass, field

_DECAY = 0.97


@dataclass(slots=True)
class Acceptance:
    """How deep drafts went and were kept, recent rounds weighing more.

    guess: the share of drafts expected to be right in their first token, and of those in the next, and so on, before
    anything was seen; prior: rounds it counts for. At depth d + 1, over the rounds that got a draft and whose budget
    reached that deep: open[d] counts them, offered[d] those whose draft was that long, kept[d] those that kept it.
    asked, drew: rounds that asked for a draft, and that got one.
    """

    guess: float = 0.7
    prior: float = 8.0
    open: list[float] = field(default_factory=list)
    offered: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)
    asked: float = 0.0
    drew: float = 0.0

    def add(self, allowed: int, drafted: int, kept: int) -> None:
        """One round: draft tokens the budget allowed, that came, and that were right."""
        self.asked = self.asked * _DECAY + 1
        self.drew = self.drew * _DECAY + (drafted > 0)
        if not drafted:
            return
        for counts in (self.open, self.offered, self.kept):
            counts.extend([0.0] * (allowed - len(counts)))
        for d in range(allowed):
            self.open[d] = self.open[d] * _DECAY + 1
            self.offered[d] = self.offered[d] * _DECAY + (drafted > d)
            self.kept[d] = self.kept[d] * _DECAY + (kept > d)

    def chance_of_draft(self) -> float:
        """Share of askings that get a draft."""
        weight = self._weight(self.asked) / 2  # silence is told from talk in fewer rounds than good drafts from bad
        return (self.drew + weight) / (self.asked + weight)

    def expected_offered(self, depth: int) -> float:
        """Mean draft tokens in a round that gets a draft and allows `depth` of them."""
        return sum(self._shares(self.offered, depth, 1.0))

    def expected_kept(self, depth: int) -> float:
        """Mean tokens of them that are right."""
        return sum(self._shares(self.kept, depth, self.guess))

    def _shares(self, counts: list[float], depth: int, fade: float) -> list[float]:
        """Share of rounds that reach each depth; where little was seen it fades from the depth before."""
        shares, last = [], 1.0
        for d in range(depth):
            opened, reached = (self.open[d], counts[d]) if d < len(self.open) else (0.0, 0.0)
            weight = self._weight(opened)
            last = (reached + weight * last * fade) / (opened + weight)
            shares.append(last)
        return shares

    def _weight(self, seen: float) -> float:
        """How many rounds the guess counts for: it fades like any round, so that in the end what was seen decides.

        After n rounds `seen` is (1 - _DECAY**n) / (1 - _DECAY); the weight is prior * _DECAY**n.
        """
        return self.prior * max(0.0, 1 - (1 - _DECAY) * seen)


#: Longest draft of each class but the last, and what is expected of a class at first: a drafter that proposes more
#: is more often right.
_CLASSES = (4, 8)
_GUESSES = (0.3, 0.5, 0.7)
_PRIOR = 2.0


class ByLength:
    """The acceptance of one request's drafts, each class of lengths by itself."""

    def __init__(self) -> None:
        self._classes = [Acceptance(guess, _PRIOR) for guess in _GUESSES]

    def of(self, length: int) -> Acceptance:
        """The acceptance of drafts as long as this one."""
        return self._classes[class_of(length)]


def class_of(length: int) -> int:
    """Which class of lengths a draft of `length` tokens belongs to."""
    return sum(length > longest for longest in _CLASSES)
