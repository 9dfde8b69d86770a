"""The engine: a target, a drafter and a rule, ready to answer prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

from torch import Tensor

from specdec import registry
from specdec.check import checked_drafter, checked_target, checked_verifier
from specdec.config import EngineConfig, check_mode
from specdec.drafter import Drafter
from specdec.engine.admission import token_ids
from specdec.engine.gap import GapReport, GapWork
from specdec.engine.keeper import StateKeeper
from specdec.engine.parts import Parts
from specdec.engine.policies import policy_for
from specdec.engine.session import DecodeSession
from specdec.engine.slots import SlotPool
from specdec.errors import OptionError
from specdec.lanes import Serial
from specdec.params import SamplingParams
from specdec.shaping.grammar import GrammarSource
from specdec.state import StateStore
from specdec.target import Target
from specdec.text import TextCodec, codec_of
from specdec.types import Chunk, Completion, Request
from specdec.verifier import Verifier

Prompt = str | Sequence[int] | Tensor
_DEFAULT_BUDGET = 8


class Engine:
    """Decodes prompts with a target, a drafter and a rule; the drafter changes when tokens come, never which.

    drafter: a name, a composition ("reuse:ngram") or a `Drafter`; verifier: a name or a `Verifier`. tokenizer: a
    `tokenizers.Tokenizer`, a fast transformers tokenizer or any object with encode and decode; the target's own if
    None. Further keywords are those of `EngineConfig`.
    """

    def __init__(
        self,
        target: Target,
        drafter: str | Drafter = "none",
        verifier: str | Verifier = "match",
        tokenizer: Any = None,
        *,
        config: EngineConfig | None = None,
        **options: Any,
    ) -> None:
        if config is not None and options:
            raise OptionError(f"config and {sorted(options)} were both given. Put them into the config.")
        self.config = config or EngineConfig.of(**options)
        source = tokenizer if tokenizer is not None else getattr(target, "tokenizer", None)
        self.codec: TextCodec | None = None if source is None else codec_of(source)
        self._parts = self._assemble(target, drafter, verifier)
        self._gap = None if self.state is None else GapWork(self.state, self._parts.slots, self._parts.gate)
        self._sessions: WeakSet[DecodeSession] = WeakSet()

    @classmethod
    def load(
        cls,
        model: str | Path,
        drafter: str | Drafter = "none",
        verifier: str | Verifier = "match",
        *,
        dtype: Any = None,
        device: str = "cpu",
        slots: int = 8,
        max_len: int | None = None,
        backbone: str = "auto",
        progress: Any = None,
        **options: Any,
    ) -> Engine:
        """An engine over a transformers model: a local folder, a GGUF file, or "smollm2".

        dtype: "fp32", "bf16", "fp16" or None for the model's own; backbone: see `HFTarget`. The budget
        policy is "cost" unless given: the step time is measured once, and drafting stops where it does not pay.
        """
        config = EngineConfig.of(**{"policy": "cost", **options})
        made = _made_drafter(drafter, config)  # before the target, which has to tap the layers the drafter reads
        target = registry.load(registry.TARGETS, "hf").load(
            model,
            dtype=dtype,
            device=device,
            slots=slots,
            max_len=max_len,
            taps=made.spec.taps,
            backbone=backbone,
            progress=progress,
        )
        return cls(target, made, verifier, config=config)

    @property
    def target(self) -> Target:
        """The target."""
        return self._parts.target

    @property
    def drafter(self) -> Drafter:
        """The drafter."""
        return self._parts.drafter

    @property
    def verifier(self) -> Verifier:
        """The rule."""
        return self._parts.verifier

    @property
    def lossless(self) -> bool:
        """Whether the rule leaves the target's output as it is."""
        return self._parts.verifier.lossless

    @property
    def state(self) -> StateKeeper | None:
        """What is kept of earlier prompts: its size, `save`, `load` and `forget`; None with `state_bytes` 0."""
        return self._parts.keeper

    @property
    def free_slots(self) -> int:
        """Slots no request holds."""
        return self._parts.slots.free

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **overrides: Any,
    ) -> list[Completion]:
        """Completions of texts or lists of token ids, in their order, `n` for each prompt.

        params: for all prompts, or one for each; overrides are fields of `SamplingParams`.
        """
        listed = _as_prompts(prompts)
        given = list(params) if isinstance(params, Sequence) else [params or SamplingParams()] * len(listed)
        if len(given) != len(listed):
            raise OptionError(f"{len(given)} params were given for {len(listed)} prompts. Give one, or one each.")
        requests = [Request(prompt, p.override(**overrides)) for prompt, p in zip(listed, given, strict=True)]
        return self.session(requests).run()

    def stream(self, prompt: Prompt, params: SamplingParams | None = None, **overrides: Any) -> Iterator[Chunk]:
        """Chunks of one completion as they come; the last has the completion. Leaving the loop aborts it."""
        params = (params or SamplingParams()).override(**overrides)
        if params.n != 1:
            raise OptionError(f"stream gives one completion; n={params.n} was asked. Use generate.")
        return _chunks(self.session([Request(prompt, params)]))

    def session(self, requests: Sequence[Request] = ()) -> DecodeSession:
        """A batch to decode step by step; close it, or run it to its end, to free its slots."""
        session = DecodeSession(self._parts, requests)
        self._sessions.add(session)
        return session

    def abort(self, request_id: str) -> None:
        """End a request wherever it is; unknown ids are ignored, since a request may have ended meanwhile."""
        for session in list(self._sessions):
            session.abort(request_id)

    def idle(
        self,
        budget_s: float,
        known_prefix: Prompt,
        *,
        session: str | None = None,
        owner: str | None = None,
    ) -> GapReport:
        """Prefill, for `budget_s` seconds at most, what the next prompt of that session or owner surely begins with.

        Meant for the time an agent waits for its screen. It ends when a request comes, after the slice under way;
        while requests are there it does nothing. What was prefilled is used if the prompt's first tokens are equal.
        Writes a free slot and the store. Raises OptionError without `state_bytes`.
        """
        if self._gap is None:
            raise OptionError(
                "idle was called; this engine keeps no state, so nothing would be left. Set state_bytes, as in "
                "Engine.load(model, state_bytes=1 << 30)."
            )
        return self._gap.run(budget_s, token_ids(self._parts, known_prefix), owner=owner, session=session)

    def _assemble(self, target: Target, drafter: str | Drafter, verifier: str | Verifier) -> Parts:
        config = self.config
        names = (_name_of(drafter), _name_of(verifier))
        made_drafter = _made_drafter(drafter, config)
        made_verifier = (
            registry.build(registry.VERIFIERS, verifier, config.verifier_options)
            if isinstance(verifier, str)
            else verifier
        )
        made_drafter.attach(target, self.codec)
        budget = min(
            config.budget or made_drafter.spec.max_budget or _DEFAULT_BUDGET,
            made_drafter.spec.max_budget or target.spec.max_budget,
            target.spec.max_budget,
        )
        keeper = StateKeeper(target, StateStore(config.state_bytes)) if config.state_bytes else None
        if config.check if config.check is not None else check_mode():
            target, made_verifier = checked_target(target), checked_verifier(made_verifier)
            made_drafter = checked_drafter(made_drafter, target.spec.vocab_size)
        policy, judge = policy_for(config.policy, target, made_drafter, made_verifier, budget)
        parts = Parts(
            target=target,
            drafter=made_drafter,
            verifier=made_verifier,
            codec=self.codec,
            grammars=GrammarSource(self.codec, target.spec.vocab_size, target.spec.eos_ids),
            slots=SlotPool(target.spec.slots),
            policy=policy,
            judge=judge,
            budget=budget,
            lanes=Serial(),
            names=names,
            keeper=keeper,
        )
        parts.check_pair()
        return parts


def _chunks(session: DecodeSession) -> Iterator[Chunk]:
    """What a session of one request yields, round by round; closes it at the end, or when it is left."""
    try:
        while True:
            active = session.active
            news = session.step()
            done = next(iter(session.take_completions()), None)
            for item in news:
                last = item.finish_reason is not None
                yield Chunk(item.tokens, item.text, item.finish_reason, done if last else None)
            if done is not None or not active:
                return
    finally:
        session.close()


def _name_of(part: str | Drafter | Verifier) -> str:
    return part if isinstance(part, str) else type(part).__name__


def _made_drafter(drafter: str | Drafter, config: EngineConfig) -> Drafter:
    """The drafter itself, built by name if need be."""
    if isinstance(drafter, Drafter):
        return drafter
    made: Drafter = registry.build(registry.DRAFTERS, drafter, config.drafter_options)
    return made


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A list of prompts; one text or one flat list of ids counts as one prompt."""
    if isinstance(prompts, str | Tensor):
        return [prompts]
    if isinstance(prompts, Mapping) or not isinstance(prompts, Sequence):
        raise OptionError(f"prompts are texts or lists of token ids; found {type(prompts).__name__}.")
    if prompts and all(isinstance(item, int) for item in prompts):
        return [list(prompts)]  # type: ignore[arg-type]  # a flat list of ids
    return list(prompts)  # type: ignore[arg-type]  # the elements are prompts, checked when they are encoded
