"""What the plug-in counts and times, beside the server's own metrics."""

from __future__ import annotations

from typing import Any

from specdec.lanes import Lanes, Serial

_PREFIX = "specdec"


class Meter:
    """Counters of one server process. Nothing is read from a device: counts come from where the server has them.

    Times are of the host: on a GPU they say how long launching took.
    """

    def __init__(self, counters: dict[str, Any]) -> None:
        self._counters = counters
        self._serial = Serial()
        self.lanes: Lanes = self._serial

    @classmethod
    def of(cls, drafter: str) -> Meter:
        """Prometheus counters with the drafter's name, where prometheus_client is installed."""
        try:
            from prometheus_client import Counter
        except ImportError:
            return cls({})

        def counter(name: str, text: str) -> Any:
            return Counter(f"{_PREFIX}_{name}", text, ["drafter"]).labels(drafter=drafter)

        return cls(
            {
                "rounds": counter("rounds", "Rounds a request took part in."),
                "accepted": counter("accepted_tokens", "Draft tokens that were kept."),
                "emitted": counter("emitted_tokens", "Tokens that rounds emitted: accepted ones and one more each."),
                "draft": counter("draft_seconds", "Seconds of the host in drafting."),
                "verify": counter("verify_seconds", "Seconds of the host in verifying and accepting."),
            }
        )

    def verified(self, accepted: list[int]) -> None:
        """A round's outcome is known: drafts kept of each row."""
        times = self._serial.ms
        draft = sum(ms for stage, ms in times.items() if "draft" in stage)
        self._add("rounds", len(accepted))
        self._add("accepted", sum(accepted))
        self._add("emitted", sum(accepted) + len(accepted))
        self._add("draft", draft / 1e3)
        self._add("verify", (sum(times.values()) - draft) / 1e3)
        self._serial.reset()

    def _add(self, name: str, value: float) -> None:
        if name in self._counters:
            self._counters[name].inc(value)
