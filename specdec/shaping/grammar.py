"""Regular expressions and JSON schemas through xgrammar, along every drafted path."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from specdec.errors import OptionError, missing_extra
from specdec.params import SamplingParams
from specdec.shaping.constraint import Constraint, Nodes
from specdec.text import FastCodec, TextCodec


class GrammarSource:
    """Compiles grammars for one vocabulary, once each; holds nothing until the first is asked for."""

    def __init__(self, codec: TextCodec | None, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._codec, self._vocab_size, self._eos_ids = codec, vocab_size, list(eos_ids)
        self._compiler: Any = None
        self._compiled: dict[tuple[str, str], Any] = {}

    def constraint(self, params: SamplingParams) -> Constraint:
        """A fresh matcher for the request's regex or JSON schema."""
        kind, text = ("regex", params.regex) if params.regex is not None else ("json_schema", _schema(params))
        key = (kind, str(text))
        if key not in self._compiled:
            self._compiled[key] = self._compile(kind, str(text))
        return Grammar(self._compiled[key], self._vocab_size, self._eos_ids)

    def _compile(self, kind: str, text: str) -> Any:
        xgrammar = _xgrammar(kind)
        if self._compiler is None:
            info = _tokenizer_info(xgrammar, kind, self._codec, self._vocab_size, self._eos_ids)
            self._compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        try:
            if kind == "regex":
                return self._compiler.compile_regex(text)
            return self._compiler.compile_json_schema(text)
        except (RuntimeError, ValueError) as error:
            raise OptionError(f"{kind} {text!r} cannot be compiled: {error}. Correct it.") from error


class Grammar(Constraint):
    """Allows at each node what the grammar allows after its path; a path that leaves the grammar is dead."""

    def __init__(self, compiled: Any, vocab_size: int, eos_ids: Sequence[int]) -> None:
        xgrammar = _xgrammar("regex")
        self._apply_mask = xgrammar.apply_token_bitmask_inplace
        self._matcher = xgrammar.GrammarMatcher(
            compiled,
            override_stop_tokens=list(eos_ids) or None,
            terminate_without_stop_token=not eos_ids,
        )
        self._mask = xgrammar.allocate_token_bitmask(1, vocab_size)

    def apply(self, logits: Tensor, nodes: Nodes) -> None:
        """Mask every node that the grammar can reach; the matcher ends where it began."""
        path: list[int] = []
        dead: set[int] = set()
        for i in _depth_first(nodes):
            parent = nodes.parent_list[i]
            if parent in dead:
                dead.add(i)
                continue
            above = nodes.paths[i][:-1]
            self._matcher.rollback(len(path) - len(above))
            path = path[: len(above)]
            if i > 0:
                if self._matcher.is_terminated() or not self._matcher.accept_token(nodes.token_list[i]):
                    dead.add(i)
                    continue
                path.append(nodes.token_list[i])
            if not self._matcher.is_terminated():
                self._mask_row(logits[i : i + 1])
        self._matcher.rollback(len(path))

    def advance(self, tokens: list[int]) -> None:
        """Follow what was emitted."""
        for token in tokens:
            if not self._matcher.is_terminated():
                self._matcher.accept_token(token)

    @property
    def done(self) -> bool:
        """Whether the grammar is complete."""
        return bool(self._matcher.is_terminated())

    def _mask_row(self, row: Tensor) -> None:
        self._matcher.fill_next_token_bitmask(self._mask)
        mask = self._mask.to(row.device)
        before = row.clone()
        self._apply_mask(row, mask)
        if row.device.type == "cpu" and bool(torch.isneginf(row).all()) and not bool(torch.isneginf(before).all()):
            # Another option had banned all that the grammar allows: the grammar holds.
            row.zero_()
            self._apply_mask(row, mask)


def _depth_first(nodes: Nodes) -> list[int]:
    """Used nodes in depth-first order, so that a matcher backtracks as little as it can."""
    children: dict[int, list[int]] = {}
    for i in nodes.used[1:]:
        children.setdefault(nodes.parent_list[i], []).append(i)
    order, stack = [], [0]
    while stack:
        i = stack.pop()
        order.append(i)
        stack.extend(reversed(children.get(i, [])))
    return order


def _schema(params: SamplingParams) -> str:
    schema = params.json_schema
    return json.dumps(schema) if isinstance(schema, Mapping) else str(schema)


def _xgrammar(option: str) -> Any:
    try:
        import xgrammar
    except ImportError as error:
        raise missing_extra("xgrammar", "grammar", f"the sampling option {option!r}") from error
    return xgrammar


def _tokenizer_info(
    xgrammar: Any, option: str, codec: TextCodec | None, vocab_size: int, eos_ids: Sequence[int]
) -> Any:
    stops = list(eos_ids) or None
    if codec is None:
        raise OptionError(f"{option} was asked; this engine has no tokenizer. Give one to the engine.")
    if isinstance(codec, FastCodec) and hasattr(codec.source, "backend_tokenizer"):
        return xgrammar.TokenizerInfo.from_huggingface(codec.source, vocab_size=vocab_size, stop_token_ids=stops)
    spelled = codec.vocabulary()
    words = [codec.decode([i]) for i in range(vocab_size)] if not spelled else [""] * vocab_size
    for word, i in spelled.items():
        if i < vocab_size:
            words[i] = word
    return xgrammar.TokenizerInfo(words, vocab_size=vocab_size, stop_token_ids=stops)
