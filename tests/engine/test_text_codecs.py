"""Text in and out: characters split over tokens, and tokenizers of every kind."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from specdec import Engine, OptionError
from specdec.testing import Echo, TableTarget
from specdec.text import PlainCodec, TextCodec, codec_of

TEXT = "añ🙂b 日本ß"


def byte_level() -> Tokenizer:
    """Every byte is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    return tokenizer


def spaced() -> Tokenizer:
    """Tokens are joined by spaces."""
    return Tokenizer(models.WordLevel({f"w{i}": i for i in range(300)}, unk_token="w0"))


def metaspace() -> Tokenizer:
    """Spaces are part of tokens, and the first one is dropped."""
    tokenizer = Tokenizer(
        models.WordLevel({("\u2581" if i % 2 else "") + f"p{i}": i for i in range(300)}, unk_token="p0")
    )
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


class Bytes:
    """A tokenizer as a plain object: ids are bytes."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")


CODECS = {"byte level": byte_level, "spaced": spaced, "metaspace": metaspace, "plain": Bytes}


@pytest.mark.parametrize("name", CODECS)
@settings(derandomize=True, deadline=None, database=None, max_examples=60)
@given(ids=st.lists(st.integers(0, 255), max_size=12))
def test_a_stream_of_tokens_adds_up_to_the_whole_text(name: str, ids: list[int]) -> None:
    codec = codec_of(CODECS[name]())
    stream = codec.stream()
    shown = "".join(stream.feed(i) for i in ids)
    assert codec.decode(ids).startswith(shown)
    assert shown + stream.flush() == codec.decode(ids)


@pytest.mark.parametrize("name", ["byte level", "plain"])
def test_a_character_is_shown_once_it_is_whole(name: str) -> None:
    codec = codec_of(CODECS[name]())
    stream = codec.stream()
    parts = [stream.feed(i) for i in codec.encode(TEXT)]
    assert "".join(parts) == TEXT
    assert [part for part in parts if part] == list(TEXT)


def reciting(ids: Sequence[int], vocab: int) -> TableTarget:
    def logits(tokens: list[int]) -> torch.Tensor:
        row = torch.zeros(vocab)
        if len(tokens) - 1 < len(ids):
            row[ids[len(tokens) - 1]] = 9.0
        return row

    return TableTarget(logits, vocab_size=vocab)


@pytest.mark.parametrize("budget", [1, 3, 9])
@pytest.mark.parametrize("name", ["byte level", "plain"])
@pytest.mark.parametrize("max_tokens", [1, 2, 4, 5, 6, 8, 14, 17])
def test_an_engine_streams_whole_characters_and_the_same_text(name: str, budget: int, max_tokens: int) -> None:
    """Half a character was streamed, or a character cut by the limit was lost."""
    tokenizer = CODECS[name]()
    codec = codec_of(tokenizer)
    ids = codec.encode(TEXT)
    engine = Engine(reciting(ids, 257), Echo({(0,): ids}), tokenizer=tokenizer, budget=budget)
    [out] = engine.generate([[0]], max_tokens=max_tokens)
    chunks = list(engine.stream([0], max_tokens=max_tokens))
    assert out.text == "".join(chunk.text for chunk in chunks) == codec.decode(ids[:max_tokens])
    assert all("\N{REPLACEMENT CHARACTER}" not in chunk.text for chunk in chunks[:-1])


def test_a_stop_string_may_hold_characters_of_many_tokens() -> None:
    ids = codec_of(byte_level()).encode(TEXT)
    engine = Engine(reciting(ids, 257), Echo({(0,): ids}), tokenizer=byte_level(), budget=9)
    [out] = engine.generate([[0]], max_tokens=17, stop="🙂")
    assert (out.text, out.tokens) == ("añ", ids[:7])


def test_ids_the_tokenizer_does_not_know_have_no_text() -> None:
    """A model's vocabulary is padded beyond its tokenizer's."""
    codec = codec_of(byte_level())
    ids = [*codec.encode("ab"), 999, *codec.encode("c")]
    engine = Engine(reciting(ids, 1000), "none", tokenizer=byte_level())
    [out] = engine.generate([[0]], max_tokens=4)
    assert (out.text, out.tokens) == ("abc", ids)


def test_special_tokens_have_no_text() -> None:
    codec = codec_of(byte_level())
    ids = [*codec.encode("ab"), 256, *codec.encode("c")]
    stream = codec.stream()
    assert "".join(stream.feed(i) for i in ids) + stream.flush() == "abc" == codec.decode(ids)


def test_the_special_frame_of_a_prompt_is_left_out_on_demand() -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = byte_level()
    tokenizer.post_processor = TemplateProcessing(single="<eos> $A", special_tokens=[("<eos>", 256)])
    codec = codec_of(tokenizer)
    assert codec.encode("a")[0] == 256
    assert codec.encode("a", special=False) == codec.encode("a")[1:]


def test_a_codec_is_made_of_what_it_is_given() -> None:
    class Wrapped:
        backend_tokenizer = byte_level()

    plain = PlainCodec(Bytes())
    assert codec_of(plain) is plain
    assert codec_of(Wrapped()).encode("a") == codec_of(byte_level()).encode("a")
    assert isinstance(codec_of(Bytes()), TextCodec)
    assert codec_of(Bytes()).vocabulary() == {}
    assert codec_of(spaced()).vocabulary()["w7"] == 7
    with pytest.raises(OptionError, match="must have encode and decode; found object"):
        codec_of(object())
