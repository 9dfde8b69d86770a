"""A target whose logits stand in a table or come from a function: every case can be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specdec.errors import ContractError, OptionError
from specdec.target import Target, TargetSpec
from specdec.types import Draft, Scores, Verdict

Logits = Tensor | Callable[[list[int]], Tensor]


class TableTarget(Target):
    """Logits [V, V] indexed by the last token, or a function from all tokens so far (prompt included) to [V]; fp32.

    It keeps each slot's committed tokens and raises ContractError where a caller breaks the cache invariant.
    """

    def __init__(
        self,
        logits: Logits,
        *,
        max_len: int = 256,
        eos_id: int | None = None,
        slots: int = 8,
        max_budget: int = 64,
        vocab_size: int | None = None,
    ) -> None:
        self._logits = logits
        size = vocab_size or self._size(logits)
        self.spec = TargetSpec(
            vocab_size=size,
            hidden_size=1,
            num_layers=1,
            max_len=max_len,
            slots=slots,
            max_budget=max_budget,
            eos_ids=() if eos_id is None else (eos_id,),
            name="table",
        )
        self._tokens: dict[int, list[int]] = {}

    def open(self, slots: Tensor, prompts: Sequence[Tensor]) -> Scores:
        """Remember the prompts."""
        rows = []
        for slot, prompt in zip(slots.tolist(), prompts, strict=True):
            self._tokens[slot] = [int(t) for t in prompt.tolist()]
            rows.append(self._row(self._tokens[slot]))
        return Scores(torch.stack(rows)[:, None])

    def score(self, slots: Tensor, lengths: Tensor, draft: Draft) -> Scores:
        """One row of logits for each node, from the slot's tokens and the node's path."""
        out = torch.zeros(*draft.tokens.shape, self.spec.vocab_size)
        for b, slot in enumerate(slots.tolist()):
            before = self._committed(slot, int(lengths[b]))
            for i in range(draft.nodes):
                path = [int(draft.tokens[b, j]) for j in range(i + 1) if bool(draft.ancestors[b, i, j])]
                out[b, i] = self._row([*before, *path]) if bool(draft.used[b, i]) else 0.0
        return Scores(out)

    def commit(self, slots: Tensor, lengths: Tensor, draft: Draft, verdict: Verdict) -> None:
        """Append the anchor and the accepted path."""
        for b, slot in enumerate(slots.tolist()):
            kept = [int(draft.tokens[b, i]) for i in verdict.path[b].tolist() if i >= 0]
            self._tokens[slot] = self._committed(slot, int(lengths[b])) + kept

    def close(self, slots: Tensor) -> None:
        """Forget the slots' tokens."""
        for slot in slots.tolist():
            self._tokens.pop(slot, None)

    def _committed(self, slot: int, length: int) -> list[int]:
        tokens = self._tokens.get(slot)
        if tokens is None or len(tokens) != length - 1:
            held = "nothing" if tokens is None else f"{len(tokens)} tokens"
            raise ContractError(f"slot {slot} was used at length {length}; it holds {held}, and must hold length - 1.")
        return tokens

    def _row(self, tokens: list[int]) -> Tensor:
        row = self._logits[tokens[-1]] if isinstance(self._logits, Tensor) else self._logits(list(tokens))
        return torch.as_tensor(row, dtype=torch.float32)

    @staticmethod
    def _size(logits: Logits) -> int:
        if isinstance(logits, Tensor):
            if logits.ndim != 2 or logits.shape[0] != logits.shape[1]:
                raise OptionError(f"logits must be [V, V]; found {list(logits.shape)}.")
            return int(logits.shape[0])
        return len(torch.as_tensor(logits([0])))
