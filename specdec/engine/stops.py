"""When a request ends, token by token, exactly where plain decoding would end it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specdec.params import SamplingParams
from specdec.text import TextStream


@dataclass(slots=True)
class Output:
    """The new tokens of one request and their text, as far as it is certain.

    text never holds a stop string. shown: characters handed out by `fresh_text`.
    """

    tokens: list[int]
    text: str = ""
    shown: int = 0
    finish_reason: str | None = None


class Stopper:
    """Adds tokens to an output and decides after each whether it ends the request.

    EOS and stop tokens first, then stop strings, the user's criteria, a complete grammar, and last the limits: a
    token that is both an end and the last one allowed is a stop.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        *,
        eos_ids: Sequence[int],
        max_len: int,
        stream: TextStream | None,
    ) -> None:
        self.ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(eos_ids))
        self.limit = min(params.max_tokens, max_len - len(prompt))
        self.output = Output([])
        self._params = params
        self._prompt = list(prompt)
        self._stream = stream
        self._longest = max(map(len, params.stop), default=0)

    @property
    def remaining(self) -> int:
        """Tokens that may still come."""
        return self.limit - len(self.output.tokens)

    def push(self, token: int, *, complete: bool = False) -> None:
        """Add one token; complete: a grammar lets nothing follow it."""
        out = self.output
        out.tokens.append(token)
        enough = len(out.tokens) >= self._params.min_tokens
        if token in self.ends and enough:
            self._finish("stop")
        elif self._stream is not None and self._extend(self._stream.feed(token), enough):
            out.finish_reason = "stop"
        elif (self._params.stop_criteria and self._criteria_say_stop()) or complete:
            self._finish("stop")
        elif self.remaining <= 0:
            self._finish("length")

    def finish(self, reason: str) -> None:
        """End the request from outside, if nothing ended it yet."""
        if self.output.finish_reason is None:
            self._finish(reason)

    def fresh_text(self) -> str:
        """Text not handed out before; what may turn out to begin a stop string is held back until it cannot."""
        out = self.output
        end = len(out.text) if out.finish_reason else len(out.text) - self._held_back()
        text = out.text[out.shown : end]
        out.shown = max(out.shown, end)
        return text

    def _criteria_say_stop(self) -> bool:
        so_far = [*self._prompt, *self.output.tokens]
        verdicts = [bool(criterion(so_far)) for criterion in self._params.stop_criteria]
        return any(verdicts)

    def _finish(self, reason: str) -> None:
        self.output.finish_reason = reason
        if self._stream is not None:
            enough = len(self.output.tokens) >= self._params.min_tokens
            if self._extend(self._stream.flush(), enough) and reason == "length":
                self.output.finish_reason = "stop"

    def _extend(self, text: str, enough: bool) -> bool:
        """Append text; true if it completed a stop string, which is then cut off."""
        out = self.output
        before = len(out.text)
        out.text += text
        if not text or not self._longest or not enough:
            return False
        starts = [(stop, max(0, before - len(stop) + 1)) for stop in self._params.stop]
        found = [at for stop, start in starts if (at := out.text.find(stop, start)) >= 0]
        if found:
            out.text = out.text[: min(found)]
        return bool(found)

    def _held_back(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        text = self.output.text
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._params.stop):
                return size
        return 0
