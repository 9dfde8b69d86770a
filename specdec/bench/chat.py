"""From a user's text to the token ids a chat model expects."""

from __future__ import annotations

from typing import Any

from specdec.errors import OptionError
from specdec.text import codec_of


def has_template(tokenizer: Any) -> bool:
    """Whether the tokenizer says how a chat is written."""
    return bool(getattr(tokenizer, "chat_template", None))


def encode(tokenizer: Any, text: str, *, chat: bool | None = None) -> list[int]:
    """Token ids of `text` as a user's turn, or as it is.

    chat None uses the tokenizer's template where there is one. Raises OptionError for chat without a template.
    """
    if tokenizer is None:
        raise OptionError("the model has no tokenizer; text cannot be encoded. Add its tokenizer to the folder.")
    if chat is None:
        chat = has_template(tokenizer)
    if not chat:
        return codec_of(tokenizer).encode(text)
    if not has_template(tokenizer):
        raise OptionError("a chat was asked for; the tokenizer has no chat template. Leave it out or use --no-chat.")
    turns = [{"role": "user", "content": text}]
    written = str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    return codec_of(tokenizer).encode(written, special=False)
