"""With the flag and without it, a real server gives the same tokens, whatever is asked of a request."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import sglang_host as sh
from prompts import TEXTS

pytestmark = pytest.mark.slow

Start = Callable[..., AbstractContextManager[sh.Server]]
_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}},
    "required": ["a", "b"],
}
#: What a request may ask for, and whether drafts of a copy of the target are sure to be accepted under it.
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "bias": {"logit_bias": {"300": 5.0, "20": 2.0}},
    "minimum": {"min_new_tokens": 24, "logit_bias": {"2": 4.0}},
    "frequency": {"frequency_penalty": 0.7},
    "presence": {"presence_penalty": 0.7},
    "repetition": {"repetition_penalty": 1.3},
    # Beside a repetition penalty the server's order of these depends on its process: it keeps them in a set.
    "penalties": {"frequency_penalty": 0.3, "presence_penalty": 0.2, "min_new_tokens": 10},
    "stop": {"stop": ["e", "x"]},
    "stop_tokens": {"stop_token_ids": [300, 301, 302]},
    "regex": {"regex": "[0-9]{3}-[a-z]{2,8}(foo|bar)+!"},
    "schema": {"json_schema": json.dumps(_SCHEMA)},
    "one": {"max_new_tokens": 1},
    "two": {"max_new_tokens": 2},
}
DRAFTERS = ["ngram", "draft_model", "forked:draft_model"]


@pytest.fixture(scope="module", params=DRAFTERS)
def drafter(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def flagged(start: Start, models: Path, drafter: str) -> Iterator[sh.Server]:
    """The server with the flag; the draft model is the target itself, so that its drafts are accepted."""
    flags = [
        "--speculative-algorithm",
        "SPECDEC",
        "--speculative-num-draft-tokens",
        "7",
        "--enable-return-hidden-states",
    ]
    if "draft_model" in drafter:
        flags += ["--speculative-draft-model-path", str(models / "target")]
    with start(*flags, drafter=drafter, check="1" if drafter == "ngram" else "0") as server:
        yield server


def told(answer: Any) -> tuple[Any, ...]:
    return answer["output_ids"], answer["text"], answer["meta_info"]["finish_reason"]


@pytest.mark.parametrize("name", OPTIONS)
def test_options(plain: sh.Server, flagged: sh.Server, name: str) -> None:
    """Twelve requests at once, 24 in all."""
    ours = [told(a) for a in flagged.all(TEXTS, **OPTIONS[name])]
    theirs = [told(a) for a in plain.all(TEXTS, **OPTIONS[name])]
    assert ours == theirs


def test_drafts_are_accepted(flagged: sh.Server, drafter: str) -> None:
    """Otherwise the tests above would say nothing."""
    answers = flagged.all(TEXTS[:6], logit_bias={"300": 5.0} if drafter == "ngram" else {})
    lengths = [a["meta_info"]["spec_accept_length"] for a in answers]
    # A copy of the target under a tree of two a level fills three levels of seven nodes.
    assert sum(lengths) / len(lengths) > (3.0 if drafter == "forked:draft_model" else 4.0)


def test_counts(flagged: sh.Server) -> None:
    """What the server says of a request adds up: each round emits what it accepted and one more."""
    meta = flagged.generate(TEXTS[0], ignore_eos=True, max_new_tokens=32)["meta_info"]
    rounds, histogram = meta["spec_verify_ct"], meta["spec_correct_drafts_histogram"]
    assert sum(histogram) == rounds
    emitted = rounds + sum(depth * count for depth, count in enumerate(histogram))
    assert meta["completion_tokens"] == 32
    # The prefill gave the first token, and the last round may have gone past the end.
    assert 31 <= emitted < 31 + 7
    assert meta["spec_accept_length"] == pytest.approx(32 / rounds)


def test_metrics(flagged: sh.Server, drafter: str) -> None:
    """Our counters stand beside the server's own."""
    flagged.generate(TEXTS[1])
    text = flagged.get("/metrics")
    assert "sglang:spec_accept_length" in text
    line = next(x for x in text.splitlines() if x.startswith("specdec_emitted_tokens_total"))
    assert f'drafter="{drafter}"' in line
    assert float(line.split()[-1]) > 0


@pytest.mark.parametrize("options", [{}, {"frequency_penalty": 0.5}], ids=["plain", "penalty"])
def test_logprobs(plain: sh.Server, flagged: sh.Server, options: dict[str, float]) -> None:
    body = {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}
    for ours, theirs in zip(
        flagged.all(TEXTS[:8], body=body, **options), plain.all(TEXTS[:8], body=body, **options), strict=True
    ):
        for key in ("input_token_logprobs", "output_token_logprobs"):
            mine, other = ours["meta_info"][key], theirs["meta_info"][key]
            assert [x[1] for x in mine] == [x[1] for x in other]
            assert [x[0] or 0.0 for x in mine] == pytest.approx([x[0] or 0.0 for x in other], abs=1e-4)
        tops = [[(x[1], x[0]) for x in at] for at in ours["meta_info"]["output_top_logprobs"]]
        others = [[(x[1], x[0]) for x in at] for at in theirs["meta_info"]["output_top_logprobs"]]
        assert [[t for t, _ in at] for at in tops] == [[t for t, _ in at] for at in others]
        assert [v for at in tops for _, v in at] == pytest.approx([v for at in others for _, v in at], abs=1e-4)


def test_hidden_states(plain: sh.Server, flagged: sh.Server) -> None:
    """A request may ask for the states behind its tokens: one for each that was emitted, in order."""
    body = {"return_hidden_states": True}
    for ours, theirs in zip(flagged.all(TEXTS[:6], body=body), plain.all(TEXTS[:6], body=body), strict=True):
        mine, other = ours["meta_info"]["hidden_states"], theirs["meta_info"]["hidden_states"]
        assert len(mine) == len(other) == 32
        # The first entry is the prompt's, one row a token.
        assert mine[0][-1] == pytest.approx(other[0][-1], abs=1e-3)
        for a, b in zip(mine[1:], other[1:], strict=True):
            assert a == pytest.approx(b, abs=1e-3)


def test_streams(flagged: sh.Server) -> None:
    """Streaming equals not streaming, on each interface."""
    whole = flagged.generate(TEXTS[2])
    body = {"text": TEXTS[2], "sampling_params": {"temperature": 0, "max_new_tokens": 32}, "stream": True}
    pieces = list(flagged.lines("/generate", body))
    assert pieces[-1]["text"] == whole["text"]
    assert len(pieces) > 1
    assert [p["text"] for p in pieces] == sorted((p["text"] for p in pieces), key=len)


def test_openai(plain: sh.Server, flagged: sh.Server) -> None:
    """Completions and chat, streamed and not."""
    base = {"model": "m", "max_tokens": 24, "temperature": 0}
    completion = base | {"prompt": TEXTS[3]}
    chat = base | {"messages": [{"role": "user", "content": TEXTS[4]}]}
    texts = []
    for server in (plain, flagged):
        whole = server.post("/v1/completions", completion)["choices"][0]["text"]
        parts = server.lines("/v1/completions", completion | {"stream": True})
        assert "".join(p["choices"][0]["text"] for p in parts if p["choices"]) == whole
        said = server.post("/v1/chat/completions", chat)["choices"][0]["message"]["content"]
        parts = server.lines("/v1/chat/completions", chat | {"stream": True})
        assert "".join(p["choices"][0]["delta"].get("content") or "" for p in parts if p["choices"]) == said
        texts.append((whole, said))
    assert texts[0] == texts[1]


def test_conversation(plain: sh.Server, flagged: sh.Server) -> None:
    """Ten turns that grow: the same tokens, and as many of them cached."""
    told_by = []
    for server in (plain, flagged):
        server.flush()
        text, seen = "begin:", []
        for turn in range(10):
            answer = server.generate(text, max_new_tokens=12, ignore_eos=True)
            seen.append((answer["output_ids"], answer["meta_info"]["cached_tokens"]))
            text += answer["text"] + f"\nturn {turn}:"
        told_by.append(seen)
    assert told_by[0] == told_by[1]
    assert told_by[1][-1][1] > 0
