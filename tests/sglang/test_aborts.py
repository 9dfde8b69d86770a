"""Requests that are aborted in the middle take nothing with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import pytest
import sglang_host as sh
from prompts import TEXTS

pytestmark = pytest.mark.slow

REQUESTS, AT_ONCE = 300, 12


@pytest.fixture(scope="module")
def flagged(start: Callable[..., AbstractContextManager[sh.Server]], models) -> Iterator[sh.Server]:
    with start(
        "--speculative-algorithm", "SPECDEC", "--speculative-num-draft-tokens", "6",
        "--speculative-draft-model-path", str(models / "target"), drafter="forked:draft_model",
    ) as server:  # fmt: skip
        yield server


def test_neighbours_and_slots(plain: sh.Server, flagged: sh.Server) -> None:
    """A third of 300 requests is aborted; the others say what they say alone, and every slot comes back."""
    expected = {text: plain.generate(text, ignore_eos=True)["output_ids"] for text in TEXTS}

    def one(number: int) -> bool:
        text, rid = TEXTS[number % len(TEXTS)], f"request-{number}"
        if number % 3:
            got = flagged.generate(text, {"rid": rid}, ignore_eos=True)["output_ids"]
            return bool(got == expected[text])
        body = {"text": text, "rid": rid, "stream": True}
        body["sampling_params"] = {"temperature": 0, "max_new_tokens": 400, "ignore_eos": True}
        for seen, _ in enumerate(flagged.lines("/generate", body)):
            if seen == 1:
                flagged.post("/abort_request", {"rid": rid})
        return True

    with ThreadPoolExecutor(AT_ONCE) as pool:
        assert all(pool.map(one, range(REQUESTS)))
    time.sleep(2.0)
    flagged.flush()
    # An idle server counts its slots, and ends where one is missing.
    assert "memory leak" not in flagged.log.read_text().lower()
    answer = flagged.generate(TEXTS[0], ignore_eos=True)
    assert answer["output_ids"] == expected[TEXTS[0]]
