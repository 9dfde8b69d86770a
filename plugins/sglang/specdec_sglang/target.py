"""SGLang's model as a `Target`: one verification of a draft is one TARGET_VERIFY forward of the server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from specdec.errors import ContractError
from specdec.target import Target, TargetSpec
from specdec.types import Draft, Scores, Verdict
from specdec_sglang import layout, sgl


class SGLangTarget(Target):
    """Scores drafts with the server's own model runner, attention backend and graphs; slots are its request rows.

    The server prefills and frees: `open` and `close` are not ours to call. A round runs inside `serving`, which names
    the batch it belongs to. taps: layers whose hidden states `Scores.hidden` holds.
    """

    def __init__(self, worker: Any, budget: int, taps: tuple[int, ...] = ()) -> None:
        self._worker, self._runner = worker, worker.model_runner
        self._pool, self._allocator = worker.get_memory_pool()
        self._batch: Any = None
        self.result: Any = None
        config = self._runner.model_config
        self.spec = TargetSpec(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_layers=config.num_hidden_layers,
            max_len=config.context_len,
            slots=self._pool.req_to_token.shape[0],
            max_budget=budget,
            eos_ids=tuple(config.hf_eos_token_id or ()),
            device=torch.device(self._runner.device),
            dtype=self._runner.dtype,
            taps=taps,
            name=str(config.model_path),
        )

    @contextmanager
    def serving(self, batch: Any) -> Iterator[None]:
        """The batch that calls in this block are about."""
        self._batch, self.result = batch, None
        try:
            yield
        finally:
            self._batch = None

    def open(self, slots: Tensor, prompts: Sequence[Tensor]) -> Scores:
        """Not here: the server's scheduler prefills."""
        raise ContractError("SGLangTarget.open was called; the server's scheduler prefills. Send it a request.")

    def close(self, slots: Tensor) -> None:
        """Not here: the server's scheduler frees."""
        raise ContractError("SGLangTarget.close was called; the server's scheduler frees. Abort the request there.")

    def score(self, slots: Tensor, lengths: Tensor, draft: Draft) -> Scores:
        """One forward of all nodes. Writes rows of the server's cache that it set aside for this step."""
        nodes = draft.nodes
        wide = draft.padded(self._width(nodes))
        self._prepare(slots, lengths - 1, wide)
        self.result = self._worker.forward_batch_generation(self._batch, is_verify=True)
        output = self.result.logits_output
        rows = (len(slots), wide.nodes)
        logits = output.next_token_logits[:, : self.spec.vocab_size].float().view(*rows, -1)[:, :nodes]
        hidden = output.hidden_states.view(*rows, -1)[:, :nodes] if self.spec.taps else None
        return Scores(logits, hidden)

    def commit(self, slots: Tensor, lengths: Tensor, draft: Draft, verdict: Verdict) -> None:
        """Move the accepted path's cache rows to the front; a chain's stand there already."""
        if draft.linear or draft.nodes == 1:
            return
        width = self._width(draft.nodes)
        index = layout.accept_index(verdict, width, draft.nodes)
        sgl.move_accept_tokens_to_target_kvcache(self._batch, index, verdict.accepted.to(torch.int32), self._allocator)

    def _width(self, nodes: int) -> int:
        """Nodes that are verified: those of the captured graphs where there are any, else as many as were drafted."""
        captured = getattr(self._runner, "decode_cuda_graph_runner", None) is not None
        return self.spec.max_budget if captured else nodes

    def _prepare(self, slots: Tensor, cached: Tensor, draft: Draft) -> None:
        """Turn the batch into one of TARGET_VERIFY. Writes its fields, which the scheduler restores afterwards."""
        batch, nodes = self._batch, draft.nodes
        at = cached[:, None] + torch.arange(nodes, device=cached.device)
        first, following = layout.child_links(draft)
        rows = torch.arange(len(slots) * nodes, device=cached.device).view(len(slots), nodes)
        tokens = draft.tokens.flatten().contiguous()
        batch.forward_mode = sgl.ForwardMode.TARGET_VERIFY
        batch.input_ids = tokens
        batch.out_cache_loc = self._pool.req_to_token[slots[:, None], at].flatten().to(torch.int64)
        batch.spec_info = sgl.NgramVerifyInput(
            draft_token=tokens,
            custom_mask=self._mask(draft, cached),
            positions=layout.positions(draft, cached),
            retrieve_index=rows,
            retrieve_next_token=first,
            retrieve_next_sibling=following,
            draft_token_num=nodes,
        )
        full = self.spec.taps
        batch.spec_info.capture_hidden_mode = sgl.CaptureHiddenMode.FULL if full else sgl.CaptureHiddenMode.NULL

    def _mask(self, draft: Draft, cached: Tensor) -> Tensor:
        """What each node sees, in the form that the device's verification reads."""
        if self.spec.device.type == "cpu":
            return layout.draft_mask(draft)
        return layout.full_mask(draft, cached, int(self._batch.seq_lens_cpu.sum()))
