"""The real default model in SGLang, float32: the same tokens with the flag and without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sglang_host as sh
from transformers import AutoTokenizer

from specdec.hf.load import resolve

pytestmark = [pytest.mark.slow, pytest.mark.model]

ASKED = [
    f"{ask} {what}."
    for what in ("rain on a tin roof", "a train that is late", "four ripe plums", "the sea at night")
    for ask in (
        "Write a haiku about",
        "Repeat three times, word by word:",
        "Translate into French:",
        "Explain to a child",
        "List five words that go with",
        "Write a Python function that prints",
    )
]


@pytest.fixture(scope="module")
def model() -> Path:
    return resolve("smollm2")


@pytest.fixture(scope="module")
def texts(model: Path) -> list[str]:
    tokenizer = AutoTokenizer.from_pretrained(model)
    chats = [[{"role": "user", "content": ask}] for ask in ASKED]
    return [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]


@pytest.fixture(scope="module")
def expected(host: sh.Host, model: Path, texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    with sh.serving(host, model, tmp_path_factory.mktemp("plain") / "log") as server:
        return [answer["output_ids"] for answer in server.all(texts, max_new_tokens=24)]


@pytest.fixture(scope="module", params=["ngram", "draft_model", "forked:ngram"])
def server(
    request: pytest.FixtureRequest, host: sh.Host, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[sh.Server]:
    flags = ["--speculative-algorithm", "SPECDEC", "--speculative-num-draft-tokens", "8", "--context-length", "512"]
    if request.param == "draft_model":
        flags += ["--speculative-draft-model-path", str(model)]
    log = tmp_path_factory.mktemp("flagged") / "log"
    with sh.serving(host, model, log, *flags, drafter=request.param) as server:
        yield server


def test_the_same_tokens(expected: list[list[int]], server: sh.Server, texts: list[str]) -> None:
    """24 prompts, twelve at once; drafts are accepted, and each answer counts them."""
    answers = server.all(texts, max_new_tokens=24)
    assert [answer["output_ids"] for answer in answers] == expected
    assert max(answer["meta_info"]["spec_accept_length"] for answer in answers) > 1.2
