"""The scheduler's worker: the library's round over the server's batches. No rule and no drafter lives here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from specdec.check import checked_drafter, checked_verifier
from specdec.config import check_mode
from specdec.drafter import Drafter
from specdec.errors import UnsupportedModel
from specdec.round import Round, run_round
from specdec.text import TextCodec, codec_of
from specdec.types import Context, Draft, Scores
from specdec.verifier import Verifier
from specdec_sglang import layout, ranks, sgl
from specdec_sglang.batches import BatchRows, new_requests, slots_of
from specdec_sglang.meter import Meter
from specdec_sglang.settings import Settings
from specdec_sglang.shaping import BatchShaper, FirstShaper
from specdec_sglang.target import SGLangTarget
from specdec_sglang.textlog import TextLog

Publish = Callable[[Tensor], None]


class SpecdecWorker(sgl.BaseSpecWorker):  # type: ignore[misc]  # SGLang is not typed
    """Drafts, verifies and commits for SGLang's scheduler, with or without its overlap schedule.

    The scheduler owns slots, cache and requests; a slot here is a row of its request pool.
    """

    def __init__(self, settings: Settings, target_worker: Any) -> None:
        super().__init__()
        self._target_worker = target_worker
        self._settings = settings
        self._made = settings.make_drafter()
        runner = target_worker.model_runner
        if sgl.mambaish_config(runner.model_config) is not None:
            raise UnsupportedModel(
                f"{runner.model_config.model_path} keeps recurrent state, which a refused draft would leave behind. "
                "Start the server without --speculative-algorithm."
            )
        self._budget = int(sgl.get_spec().speculative_num_draft_tokens)
        self.speculative_num_draft_tokens = self._budget
        self.speculative_num_steps = sgl.get_spec().speculative_num_steps
        if self._made.spec.taps:
            runner.model.set_eagle3_layers_to_capture(list(self._made.spec.taps))

    def __getattr__(self, name: str) -> Any:
        """What the scheduler asks of its model worker and this one lacks is the target worker's."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._target_worker, name)

    @property
    def draft_worker(self) -> None:
        """None: no drafter runs through a model worker of the server's own."""
        return

    def alloc_memory_pool(self, **pools: Any) -> None:
        """The pools exist: build the target, the drafter and the rule over them."""
        super().alloc_memory_pool(**pools)
        worker, settings = self._target_worker, self._settings
        self._target = SGLangTarget(worker, self._budget, self._made.spec.taps)
        spec = self._target.spec
        tokenizer = getattr(worker, "tokenizer", None)
        codec: TextCodec | None = None if tokenizer is None else codec_of(tokenizer)
        self._made.attach(self._target, codec)
        drafter: Drafter = ranks.AgreedDrafter.over(self._made, ranks.group())
        verifier: Verifier = ranks.AgreedVerifier.over(settings.make_verifier(), ranks.group())
        if check_mode():
            drafter, verifier = checked_drafter(drafter, spec.vocab_size), checked_verifier(verifier)
        self._drafter, self._verifier = drafter, verifier
        self._log = TextLog(spec.slots, spec.max_len, self._budget, spec.device)
        self._rows = BatchRows(spec.vocab_size, spec.device, ranks.salt())
        self._meter = Meter.of(settings.drafter)
        self._open: set[int] = set()

    def clear_cache_pool(self) -> None:
        """The server's cache was flushed: nothing runs, so every slot is closed."""
        self._close(list(self._open))

    def on_verify_complete_cpu(self, num_correct_drafts_per_req: list[int], batch_size: int = 0) -> None:
        """Count what was accepted, where the server has it on the host anyway."""
        self._meter.verified(num_correct_drafts_per_req)

    def forward_batch_generation(self, batch: Any, on_publish: Publish | None = None, **options: Any) -> Any:
        """One step of the scheduler: a prefill, or a round for every row."""
        publish = on_publish or (lambda lengths: None)
        stream = torch.get_device_module(self._target.spec.device).current_stream()
        sgl.record_stream_for_v2_verify(batch, None, stream)
        if batch.forward_mode.is_decode():
            return self._decode(batch, publish)
        return self._extend(batch, publish, options.get("pp_proxy_tensors"))

    def _close(self, slots: list[int]) -> None:
        if slots:
            self._drafter.close(torch.tensor(slots, device=self._target.spec.device))
            self._open.difference_update(slots)

    # A round

    def _decode(self, batch: Any, publish: Publish) -> Any:
        # Every running request is in the batch of a decode step: what is missing has ended or was set back.
        self._close(sorted(self._open - set(slots_of(batch))))
        slots, lengths = batch.req_pool_indices.to(torch.int64), batch.seq_lens.to(torch.int64) + 1
        rows = self._rows.of(batch.reqs)
        ctx = self._context(slots, lengths, rows.sampling)
        shaper = BatchShaper(batch, rows, self._log)
        with self._target.serving(batch):
            done = run_round(self._target, self._drafter, self._verifier, ctx, shape=shaper, lanes=self._meter.lanes)
            publish(batch.seq_lens + done.verdict.accepted + 1)
            self._log.commit(slots, lengths, done.draft, done.verdict)
            result = self._result(batch, done, shaper, self._target.result)
        batch.forward_mode = sgl.ForwardMode.DECODE
        return result

    def _context(self, slots: Tensor, lengths: Tensor, sampling: Any) -> Context:
        window = max(1, self._drafter.spec.window)
        return Context(
            slots,
            lengths,
            self._log.tail(slots, lengths, window),
            min(self._budget, self._drafter.spec.max_budget or self._budget),
            sampling,
            wants_q=self._verifier.needs_q,
            room=self._log.room(slots, lengths),
        )

    def _result(self, batch: Any, done: Round, shaper: BatchShaper, forward: Any) -> Any:
        verdict, draft = done.verdict, done.draft
        output = forward.logits_output
        if batch.return_logprob and shaper.logits is not None:
            output.next_token_logits = shaper.logits.flatten(0, 1)
            sgl.compute_spec_logprobs(
                batch,
                output,
                layout.following(draft, verdict),
                accept_index=layout.accept_index(verdict, draft.nodes, self._budget),
            )
        if batch.return_hidden_states and output.hidden_states is not None:
            kept = layout.accept_index(verdict, output.hidden_states.shape[0] // len(batch.reqs), self._budget)
            output.hidden_states = output.hidden_states[kept.flatten().clamp(min=0).to(torch.int64)]
        emitted = verdict.emitted(draft).clamp(min=0).to(torch.int32)
        emitted = torch.nn.functional.pad(emitted, (0, self._budget - emitted.shape[1]))
        accept_lens = (verdict.accepted + 1).to(torch.int32)
        return self._outcome(output, emitted, accept_lens, batch.seq_lens + accept_lens, forward.can_run_cuda_graph)

    def _outcome(self, output: Any, emitted: Tensor, accept_lens: Tensor, new_seq_lens: Tensor, graph: bool) -> Any:
        return sgl.GenerationBatchResult(
            logits_output=output,
            next_token_ids=emitted.flatten(),
            can_run_cuda_graph=graph,
            accept_lens=accept_lens,
            new_seq_lens=new_seq_lens,
            next_draft_input=sgl.NgramVerifyInput(
                draft_token_num=self._budget,
                new_seq_lens=new_seq_lens,
                accept_tokens=emitted.flatten(),
                accept_lens=accept_lens,
            ),
            speculative_num_draft_tokens=self._budget,
        )

    # A prefill

    def _extend(self, batch: Any, publish: Publish, proxies: Any) -> Any:
        """Prefill by the server; requests whose prompt is whole begin with the token that follows it."""
        own = not (batch.sampling_info.is_all_greedy or batch.is_prefill_only or batch.forward_mode.is_idle())
        forward = self._target_worker.forward_batch_generation(
            batch, pp_proxy_tensors=proxies, is_verify=own, capture_hidden_mode=self._capture()
        )
        tokens = self._first_tokens(batch, forward) if own else forward.next_token_ids
        new_seq_lens = batch.seq_lens.clone()
        publish(new_seq_lens)
        self._begin(batch, forward, tokens.to(torch.int64))
        rows = len(batch.reqs)
        emitted = torch.zeros(rows, self._budget, dtype=torch.int32, device=batch.seq_lens.device)
        emitted[:, 0] = tokens
        ones = torch.ones(rows, dtype=torch.int32, device=batch.seq_lens.device)
        outcome = self._outcome(forward.logits_output, emitted, ones, new_seq_lens, forward.can_run_cuda_graph)
        outcome.next_token_ids = tokens
        return outcome

    def _capture(self) -> Any:
        return sgl.CaptureHiddenMode.LAST if self._target.spec.taps else None

    def _first_tokens(self, batch: Any, forward: Any) -> Tensor:
        """The token after each prompt by our rule, so that a seed decides it too."""
        output = forward.logits_output
        self._target_worker.model_runner._preprocess_logits(output, batch.sampling_info)
        slots, lengths = batch.req_pool_indices.to(torch.int64), batch.seq_lens.to(torch.int64)
        rows = self._rows.of(batch.reqs)
        # Penalties, grammar and bias are the server's here: before the first token there is no output to count.
        shaper = FirstShaper(batch, rows, self._log)
        logits = output.next_token_logits[:, : self._target.spec.vocab_size].float()[:, None]
        draft = Draft.empty(torch.zeros_like(lengths))
        ctx = self._context(slots, lengths, rows.sampling)
        scores = shaper(ctx, draft, Scores(logits))
        verdict = self._verifier.accept(draft, scores, rows.sampling, lengths)
        if batch.return_logprob and shaper.logits is not None:
            output.next_token_logits = shaper.logits[:, 0]
            index = torch.arange(len(lengths), device=lengths.device, dtype=torch.int32)[:, None]
            sgl.compute_spec_logprobs(batch, output, verdict.next_token, accept_index=index)
            output.next_token_logprobs = output.next_token_logprobs.view(-1)
        return verdict.next_token

    def _begin(self, batch: Any, forward: Any, tokens: Tensor) -> None:
        """Log the prompts that are whole now, and tell the drafter."""
        fresh = new_requests(batch, self._target.spec)
        if not fresh:
            return
        self._close([item.slot for item in fresh if item.slot in self._open])
        device = self._target.spec.device
        for item in fresh:
            self._open.add(item.slot)
            self._log.open(item.slot, item.request.ids, item.prompt, item.new_tokens)
        at = torch.tensor([item.row for item in fresh], device=device)
        slots = batch.req_pool_indices.to(torch.int64)[at]
        self._log.append(slots, batch.seq_lens.to(torch.int64)[at], tokens[at][:, None])
        self._drafter.open(slots, [item.request for item in fresh], self._scores_of(forward.logits_output, at))

    def _scores_of(self, output: Any, at: Tensor) -> Scores:
        """What follows the prompts. The server may have turned the logits into probabilities; drafters read hidden."""
        hidden = output.hidden_states[at][:, None] if self._target.spec.taps else None
        return Scores(output.next_token_logits[at][:, None].float(), hidden)
