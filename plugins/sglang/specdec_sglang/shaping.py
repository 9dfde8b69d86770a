"""Between the server's logits and the rule: penalties, grammar, bias, processors and filters, node by node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from specdec.types import Context, Draft, Scores
from specdec_sglang import layout, sgl
from specdec_sglang.rows import Rows
from specdec_sglang.textlog import TextLog


class BatchShaper:
    """The shape of one round of one batch; `logits` [B, N, V] are what log-probabilities are taken of, once it ran.

    The order is the server's own for plain decoding. A draft's path counts as if it had been emitted.
    """

    def __init__(self, batch: Any, rows: Rows, log: TextLog) -> None:
        self._batch, self._rows, self._log = batch, rows, log
        self.logits: Tensor | None = None

    def __call__(self, ctx: Context, draft: Draft, scores: Scores) -> Scores:
        """Scores as plain decoding would have them after each node's path."""
        self.logits = self._shaped(ctx, draft, scores.logits)
        filters = self._rows.filters
        logits = self.logits if filters is None else filters(self.logits, ctx.sampling.temperature)
        return replace(scores, logits=logits)

    def _shaped(self, ctx: Context, draft: Draft, logits: Tensor) -> Tensor:
        if self._rows.penalties is not None:
            logits = self._rows.penalties(logits, *self._histories(ctx, draft, logits.shape[-1]))
        if self._batch.has_grammar:
            logits = self._grammar(draft, logits)
        if self._rows.bias is not None:
            logits = logits + self._rows.bias[:, None]
        return self._processed(ctx, draft, logits)

    def _histories(self, ctx: Context, draft: Draft, vocab_size: int) -> tuple[Tensor, Tensor]:
        """Counts of output tokens before what follows each node [B, N, V], and how many they are [B, N]."""
        longest = int(ctx.lengths.max()) if ctx.lengths.device.type == "cpu" else None
        counts = self._log.counts(ctx.slots, ctx.lengths, vocab_size, longest)
        counts = counts[:, None].repeat(1, draft.nodes, 1)
        above = draft.ancestors & draft.used[:, None]
        above[:, :, 0] = False  # the anchor is in the log
        tokens = draft.tokens.clamp(min=0)[:, None].expand_as(above)
        counts.scatter_add_(2, tokens, above.to(counts.dtype))
        return counts, self._log.emitted(ctx.slots, ctx.lengths)[:, None] + draft.depth

    def _grammar(self, draft: Draft, logits: Tensor) -> Tensor:
        """Tokens that a grammar forbids after a node's path become -inf. The walk over the tree runs on the host."""
        links = sgl.GrammarTree.from_device(*layout.child_links(draft), draft.tokens)
        mask = sgl.build_grammar_vocab_mask(
            reqs=self._batch.reqs,
            tree=links,
            sampling_info=self._batch.sampling_info,
            device=logits.device,
            barrier=None,
        )
        flat = logits.flatten(0, 1).contiguous()
        if mask is not None:
            mask.apply(flat)
        return flat.view_as(logits)

    def _processed(self, ctx: Context, draft: Draft, logits: Tensor) -> Tensor:
        """Custom processors see one line a node. Syncs with the host where they read the request."""
        info = self._batch.sampling_info
        if not info.has_custom_logit_processor:
            return logits
        logits = logits.clone()
        for entry in info.custom_logit_processor.values():
            params: list[Any] = []
            for row in entry.rows:
                params += self._views(ctx, draft, row, info.custom_params[row])
            picked = logits[entry.rows]
            done = entry.processor(picked.flatten(0, 1), params)
            logits[entry.rows] = done.view_as(picked).to(logits.dtype)
        return logits

    def _views(self, ctx: Context, draft: Draft, row: int, params: Any) -> list[Any]:
        """A row's parameters for each node; "__req__" shows the text up to it."""
        if not isinstance(params, dict) or "__req__" not in params:
            return [params] * draft.nodes
        said = self._log.output(int(ctx.slots[row]), int(ctx.lengths[row]))
        paths = path_tokens(draft, row)
        return [{**params, "__req__": RequestView(params["__req__"], said + path)} for path in paths]


class FirstShaper(BatchShaper):
    """The shape before a request's first token, after the server itself applied penalties, grammar and bias."""

    def _shaped(self, ctx: Context, draft: Draft, logits: Tensor) -> Tensor:
        return self._processed(ctx, draft, logits)

    def _views(self, ctx: Context, draft: Draft, row: int, params: Any) -> list[Any]:
        """The request as it is: its output is what it had before this prefill."""
        return [params] * draft.nodes


class RequestView:
    """The server's request as it would stand after some more output; everything else is the request's own."""

    def __init__(self, req: Any, output_ids: Sequence[int]) -> None:
        self._req, self.output_ids = req, list(output_ids)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._req, name)


def path_tokens(draft: Draft, row: int) -> list[list[int]]:
    """Tokens from below the anchor to each node of a row, on the host."""
    tokens, parents = draft.tokens[row].tolist(), draft.parents[row].tolist()
    paths: list[list[int]] = [[]]
    for node in range(1, len(tokens)):
        paths.append([] if parents[node] < 0 else [*paths[parents[node]], tokens[node]])
    return paths
