"""Text on the way in and out: one small face for every kind of tokenizer, and incremental detokenising."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer as FastTokenizer
from tokenizers.decoders import DecodeStream

from specdec.errors import OptionError


class TextStream(ABC):
    """Turns tokens into text one by one, holding back what is not a whole character yet."""

    @abstractmethod
    def feed(self, token: int) -> str:
        """The text that became certain with this token; may be empty."""

    @abstractmethod
    def flush(self) -> str:
        """What was held back, once no more tokens come."""


class TextCodec(ABC):
    """What the engine needs of a tokenizer; `source` is the object the user gave."""

    source: Any

    @abstractmethod
    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids; `special` adds what the tokenizer puts around a prompt (BOS and the like)."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""

    @abstractmethod
    def stream(self) -> TextStream:
        """A fresh incremental detokeniser."""

    @abstractmethod
    def vocabulary(self) -> dict[str, int]:
        """Every token's own spelling and id; empty where the tokenizer does not tell."""


def codec_of(tokenizer: Any) -> TextCodec:
    """A codec for a `tokenizers.Tokenizer`, a fast transformers tokenizer, or anything with encode and decode."""
    if isinstance(tokenizer, TextCodec):
        return tokenizer
    if isinstance(tokenizer, FastTokenizer):
        return FastCodec(tokenizer, tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if isinstance(backend, FastTokenizer):
        return FastCodec(tokenizer, backend)
    if callable(getattr(tokenizer, "encode", None)) and callable(getattr(tokenizer, "decode", None)):
        return PlainCodec(tokenizer)
    raise OptionError(
        f"tokenizer must have encode and decode; found {type(tokenizer).__name__}. "
        "Give a tokenizers.Tokenizer, a fast transformers tokenizer, or an object with both methods."
    )


class FastCodec(TextCodec):
    """Codec over the tokenizers library, which detokenises incrementally itself."""

    def __init__(self, source: Any, backend: FastTokenizer) -> None:
        self.source, self._backend = source, backend

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of the text."""
        return list(self._backend.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return str(self._backend.decode(list(ids), skip_special_tokens=True))

    def stream(self) -> TextStream:
        """A stream over `DecodeStream`."""
        return _FastStream(self._backend)

    def vocabulary(self) -> dict[str, int]:
        """Spellings and ids, added tokens included."""
        return dict(self._backend.get_vocab(with_added_tokens=True))


class PlainCodec(TextCodec):
    """Codec over any object with encode(text) and decode(ids)."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of the text."""
        return [int(i) for i in self.source.encode(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids."""
        return str(self.source.decode(list(ids)))

    def stream(self) -> TextStream:
        """A stream that decodes the whole output again at each token."""
        return _PlainStream(self)

    def vocabulary(self) -> dict[str, int]:
        """The object's own get_vocab, if it has one."""
        get = getattr(self.source, "get_vocab", None)
        return dict(get()) if callable(get) else {}


class _FastStream(TextStream):
    def __init__(self, backend: FastTokenizer) -> None:
        self._backend = backend
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._given = 0

    def feed(self, token: int) -> str:
        self._ids.append(token)
        text = self._stream.step(self._backend, token) or ""
        self._given += len(text)
        return text

    def flush(self) -> str:
        whole = str(self._backend.decode(self._ids, skip_special_tokens=True))
        return whole[self._given :]


class _PlainStream(TextStream):
    def __init__(self, codec: PlainCodec) -> None:
        self._codec = codec
        self._ids: list[int] = []
        self._given = 0

    def feed(self, token: int) -> str:
        self._ids.append(token)
        whole = self._codec.decode(self._ids)
        if whole.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        return self._advance(whole)

    def flush(self) -> str:
        return self._advance(self._codec.decode(self._ids))

    def _advance(self, whole: str) -> str:
        text = whole[self._given :]
        self._given = len(whole)
        return text
