"""The server's requests as ours: which begin in a prefill, and what each row of a batch asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specdec.target import TargetSpec
from specdec.types import Request
from specdec_sglang.rows import Rows


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request whose prompt was prefilled to its end: its row in the batch, its slot, and what to log.

    prompt: tokens of the prompt alone; the request's ids also hold what it had emitted before it was set back.
    """

    row: int
    slot: int
    request: Request
    prompt: int
    new_tokens: int


def slots_of(batch: Any) -> list[int]:
    """The slot of each row. A request that ended while this step was prepared no longer knows its own."""
    return [int(slot) for slot in batch.req_pool_indices_cpu.tolist()]


def new_requests(batch: Any, spec: TargetSpec) -> list[NewRequest]:
    """Rows whose prefill ends here; a chunk in the middle of a prompt is none."""
    found: list[NewRequest] = []
    slots = slots_of(batch)
    for row, req in enumerate(batch.reqs):
        whole = len(req.origin_input_ids) + len(req.output_ids)
        if batch.prefix_lens[row] + batch.extend_lens[row] < whole:
            continue
        # Placeholders of images lie outside the vocabulary; a drafter sees token 0 there.
        ids = torch.tensor([*req.origin_input_ids, *req.output_ids], dtype=torch.int64)
        ids = torch.where((ids >= 0) & (ids < spec.vocab_size), ids, 0).to(spec.device, non_blocking=True)
        request = Request(
            ids, session=_tag(req, "session"), id=req.rid, owner=_tag(req, "owner"), call=_tag(req, "call") or ""
        )
        limit = req.sampling_params.max_new_tokens
        found.append(
            NewRequest(
                row, slots[row], request, len(req.origin_input_ids), limit if limit is not None else spec.max_len
            )
        )
    return found


def _tag(req: Any, name: str) -> str | None:
    """custom_params["specdec_<name>"] of a request; for a session also the server's own session."""
    params = req.sampling_params.custom_params
    given = params.get(f"specdec_{name}") if isinstance(params, dict) else None
    if given is None and name == "session":
        given = req.session_id
    return None if given is None else str(given)


class BatchRows:
    """`Rows` of the batch that runs, rebuilt only when its requests change."""

    def __init__(self, vocab_size: int, device: torch.device, salt: int) -> None:
        self._vocab, self._device, self._salt = vocab_size, device, salt
        self._ids: list[str] = []
        self._rows: Rows | None = None

    def of(self, reqs: Sequence[Any]) -> Rows:
        """The rows' options."""
        ids = [req.rid for req in reqs]
        if self._rows is None or ids != self._ids:
            self._rows, self._ids = Rows.of(reqs, self._vocab, self._device, self._salt), ids
        return self._rows
