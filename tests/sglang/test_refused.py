"""What a server cannot have is refused when it is launched, in words; switched off, the plug-in is not there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import sglang_host as sh

pytestmark = pytest.mark.slow

Start = Callable[..., AbstractContextManager[sh.Server]]
_FLAG = ("--speculative-algorithm", "SPECDEC")


@pytest.mark.parametrize(
    ("flags", "settings", "words"),
    [
        (("--page-size", "16"), {"drafter": "forked:ngram"}, "--page-size 16 was chosen"),
        (("--speculative-num-steps", "3"), {}, "--speculative-num-steps 3"),
        ((), {"drafter": "ngrm"}, "Did you mean 'ngram'"),
        ((), {"draftr": "ngram"}, "SPECDEC_DRAFTR"),
        ((), {"drafter": "tapped"}, "SPECDEC_HIDDEN"),
    ],
    ids=["pages", "steps", "name", "variable", "states"],
)
def test_launch(start: Start, flags: tuple[str, ...], settings: dict[str, str], words: str) -> None:
    with pytest.raises(RuntimeError, match="the server ended") as told, start(*_FLAG, *flags, **settings):
        pass
    assert words in str(told.value)


def test_switched_off(start: Start) -> None:
    with pytest.raises(RuntimeError, match="the server ended") as told, start(*_FLAG, disable="1"):
        pass
    assert "Unknown speculative algorithm" in str(told.value)


def test_another_host(host: sh.Host, start: Start, tmp_path: Path) -> None:
    """A method is renamed in a copy of SGLang: the launch is refused with its name, and no scheduler starts."""
    installed = Path(host.run("-c", "import sglang; print(sglang.__path__[0])").strip())
    copy = tmp_path / "sglang"
    shutil.copytree(installed, copy, copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__"))
    file = copy / "srt" / "speculative" / "spec_utils.py"
    text = file.read_text()
    file.unlink()
    file.write_text(text.replace("move_accept_tokens_to_target_kvcache", "shift_accepted_tokens"))
    with pytest.raises(RuntimeError, match="the server ended") as told, start(*_FLAG, path=str(tmp_path)):
        pass
    assert "sglang.srt.speculative.spec_utils has no move_accept_tokens_to_target_kvcache" in str(told.value)
    assert "Known to work: 0.5.23" in str(told.value)
    assert "Scheduler hit an exception" not in str(told.value)


def test_hidden_states(plain: sh.Server, start: Start) -> None:
    """A drafter that reads two layers gets them, and the tokens are the same."""
    with start("--speculative-algorithm", "SPECDEC_HIDDEN", drafter="tapped") as server:
        texts = ["a b c a b c a", "def f(x):"]
        options = {"logit_bias": {"300": 5.0}}
        ours = [a["output_ids"] for a in server.all(texts, **options)]
        assert ours == [a["output_ids"] for a in plain.all(texts, **options)]
