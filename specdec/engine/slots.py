"""Which slots of the target are free."""

from __future__ import annotations

import heapq

from specdec.errors import CapacityError


class SlotPool:
    """Hands out slot numbers, lowest first, so that the rows of a batch tend to lie side by side."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))
        self._held: set[int] = set()

    @property
    def free(self) -> int:
        """Slots that may be taken now."""
        return len(self._free)

    def take(self) -> int:
        """The lowest free slot."""
        if not self._free:
            raise CapacityError(f"a slot was asked for; all {self.count} are held. Close a session first.")
        slot = heapq.heappop(self._free)
        self._held.add(slot)
        return slot

    def give_back(self, slot: int) -> None:
        """Free a slot; giving one back twice is a defect of the caller and raises."""
        if slot not in self._held:
            raise CapacityError(f"slot {slot} was given back; it is not held. Each slot is freed once.")
        self._held.remove(slot)
        heapq.heappush(self._free, slot)
