"""The engine's calls: forms of prompts, options, streams, and what the parts must fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from specdec import CompositionError, Engine, EngineConfig, OptionError, Request, SamplingParams, UnknownPlugin
from specdec.drafter import DrafterSpec
from specdec.testing import Echo, RandomTree, ScriptedDrafter, TinyTarget
from specdec.types import Context, Draft

LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789 "]


def letters() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({c: i for i, c in enumerate(LETTERS)}, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


@pytest.mark.parametrize(
    ("prompts", "count"),
    [
        ([3, 1, 4], 1),
        ((3, 1, 4), 1),
        (torch.tensor([3, 1, 4]), 1),
        ([torch.tensor([3, 1, 4]), [3, 1, 4], (3, 1, 4), "dbe"], 4),
        ("dbe", 1),
        (["dbe", "dbe"], 2),
        ([], 0),
    ],
    ids=str,
)
def test_prompts_are_texts_or_ids_alone_or_in_lists(prompts: object, count: int) -> None:
    engine = Engine(TinyTarget(), "none", tokenizer=letters())
    got = engine.generate(prompts, max_tokens=5)  # type: ignore[arg-type]
    [want] = engine.generate([[3, 1, 4]], max_tokens=5)
    assert [out.tokens for out in got] == [want.tokens] * count


@pytest.mark.parametrize(
    "prompts", [3, {"a": 1}, np.array([1, 2]), None, [1.5], [None], [3, "a"], torch.tensor(3)], ids=str
)
def test_what_is_no_prompt_is_refused_in_words(prompts: object) -> None:
    engine = Engine(TinyTarget(), "none", tokenizer=letters())
    with pytest.raises(OptionError, match="prompt"):
        engine.generate(prompts)  # type: ignore[arg-type]


def test_a_text_without_a_tokenizer_is_refused_in_words() -> None:
    with pytest.raises(OptionError, match=r"the prompt is text .'hello'.; this engine has no tokenizer"):
        Engine(TinyTarget(), "none").generate("hello")


def test_one_params_for_all_or_one_each_and_overrides_on_top() -> None:
    engine = Engine(TinyTarget(), "none")
    one = engine.generate([[1], [2]], SamplingParams(max_tokens=3))
    each = engine.generate([[1], [2]], [SamplingParams(max_tokens=3), SamplingParams(max_tokens=5)])
    over = engine.generate([[1], [2]], SamplingParams(max_tokens=3, temperature=0.5, seed=1), temperature=0.0)
    assert [len(out.tokens) for out in one] == [3, 3]
    assert [len(out.tokens) for out in each] == [3, 5]
    assert [out.tokens for out in over] == [out.tokens for out in one]
    with pytest.raises(OptionError, match="1 params were given for 2 prompts"):
        engine.generate([[1], [2]], [SamplingParams()])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda e: e.generate([[1]], max_token=3),
            "sampling option 'max_token' is not known .*Did you mean 'max_tokens'",
        ),
        (lambda e: list(e.stream([1], temprature=3)), "Did you mean 'temperature'"),
        (lambda e: list(e.stream([1], n=2)), "stream gives one completion; n=2"),
        (lambda e: Engine(TinyTarget(), "none", budgets=3), "engine option 'budgets' is not known .*'budget'"),
        (lambda e: Engine(TinyTarget(), "none", config=EngineConfig(), budget=3), "config and .'budget'. were both"),
        (lambda e: Engine(TinyTarget(), "ngram", drafter_options={"draft_model": {}}), "'ngram' does not name"),
        (lambda e: Engine(TinyTarget(), "draft_model"), "'draft_model' needs the option 'model'"),
        (lambda e: Engine(TinyTarget(), "none", policy="guess"), "policy is 'fixed' or 'cost'"),
        (lambda e: Engine(TinyTarget(), "none", tokenizer=3), "tokenizer must have encode and decode; found int"),
    ],
)
def test_an_unknown_option_is_refused_by_name(call: object, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        call(Engine(TinyTarget(), "none"))  # type: ignore[operator]


def test_unknown_parts_are_refused_by_name() -> None:
    with pytest.raises(UnknownPlugin, match=r"drafter 'ngrams' is not registered .*Did you mean 'ngram'"):
        Engine(TinyTarget(), "ngrams")
    with pytest.raises(UnknownPlugin, match="verifier 'matches' is not registered"):
        Engine(TinyTarget(), "none", "matches")


def test_parts_that_cannot_work_together_are_refused_by_name() -> None:
    with pytest.raises(CompositionError, match="verifier 'rejection' decides chains only; drafter 'RandomTree'"):
        Engine(TinyTarget(), RandomTree(), "rejection")

    class Reads(ScriptedDrafter):
        def __init__(self) -> None:
            super().__init__([])
            self.spec = DrafterSpec(taps=(0, 1))

    with pytest.raises(CompositionError, match=r"drafter 'Reads' reads hidden states of layers \(0, 1\)"):
        Engine(TinyTarget(taps=(0,)), Reads())
    Engine(TinyTarget(taps=(0, 1)), Reads())


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_leaving_a_stream_frees_its_slot(stop_after: int) -> None:
    engine = Engine(TinyTarget(slots=1), "ngram", budget=3)
    for i, _ in enumerate(stream := engine.stream([1, 2], max_tokens=40)):
        if i + 1 == stop_after:
            break
    stream.close()
    assert engine.free_slots == 1


@pytest.mark.parametrize("budget", [1, 2, 5])
def test_the_chunks_of_a_stream_are_the_completion_in_parts(budget: int) -> None:
    [want] = Engine(TinyTarget(), "none", tokenizer=letters()).generate([[1, 2]], max_tokens=17)
    engine = Engine(TinyTarget(), Echo({(1, 2): want.tokens}, rate=0.7), tokenizer=letters(), budget=budget)
    chunks = list(engine.stream([1, 2], max_tokens=17))
    assert [token for chunk in chunks for token in chunk.tokens] == want.tokens
    assert "".join(chunk.text for chunk in chunks) == want.text
    assert all(chunk.finish_reason is None and chunk.completion is None for chunk in chunks[:-1])
    last = chunks[-1]
    assert last.completion is not None
    assert (last.finish_reason, last.completion.tokens, last.completion.text) == ("length", want.tokens, want.text)
    assert len(chunks) == 1 + last.completion.stats.rounds


def test_a_stream_that_is_aborted_ends_with_its_completion() -> None:
    engine = Engine(TinyTarget(), "none", tokenizer=letters())
    chunks = []
    for chunk in engine.stream([1, 2], max_tokens=40, stop="no such text in it"):
        chunks.append(chunk)
        if len(chunks) == 5:
            [session] = [s for s in engine._sessions if not s.closed]
            session.abort(session._batch.rows[0].id)
    assert chunks[-1].completion is not None
    assert chunks[-1].finish_reason == "abort"
    assert "".join(chunk.text for chunk in chunks) == chunks[-1].completion.text
    assert [token for chunk in chunks for token in chunk.tokens] == chunks[-1].completion.tokens


class Counted(RandomTree):
    calls = 0

    def propose(self, ctx: Context) -> Draft:
        self.calls += 1
        return super().propose(ctx)


@pytest.mark.parametrize(("budget", "calls"), [(1, 0), (2, 8)])
def test_a_budget_of_one_never_asks_the_drafter(budget: int, calls: int) -> None:
    drafter = Counted()
    Engine(TinyTarget(), drafter, budget=budget).generate([[1]], max_tokens=10, logit_bias={}, seed=1)
    assert (drafter.calls == 0) is (calls == 0)


def test_nothing_is_drafted_for_a_last_token() -> None:
    drafter = Counted()
    Engine(TinyTarget(), drafter, budget=8).generate([[1]], max_tokens=2)
    assert drafter.calls == 0


def test_statistics_add_up() -> None:
    prompts = [[1, 5, 9, 2], [3, 3, 8], [2]]
    plain = Engine(TinyTarget(), "none").generate(prompts, max_tokens=20)
    answers = {tuple(p): out.tokens for p, out in zip(prompts, plain, strict=True)}
    for out, prompt in zip(
        Engine(TinyTarget(slots=2), Echo(answers, rate=0.7), budget=5).generate(prompts, max_tokens=20),
        prompts,
        strict=True,
    ):
        stats = out.stats
        assert stats.prompt_tokens == len(prompt)
        assert 1 + stats.emitted == len(out.tokens) == 20
        assert stats.tau == stats.emitted / stats.rounds
        assert 0 < stats.accepted <= stats.drafted <= 4 * stats.rounds
        assert stats.emitted <= stats.accepted + stats.rounds
        assert stats.total_ms >= stats.queue_ms >= 0
        assert min(stats.prefill_ms, stats.verify_ms, stats.draft_ms) > 0


def test_a_lossy_rule_says_so() -> None:
    assert Engine(TinyTarget(), "none").lossless
    assert not Engine(TinyTarget(), "none", "typical").lossless
    assert not Engine(TinyTarget(), "none", "typical", check=True).lossless


@pytest.mark.parametrize("value", ["1", "yes"])
def test_the_environment_may_ask_for_checks(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("SPECDEC_CHECK", value)
    assert type(Engine(TinyTarget(), "none").target).__name__ == "CheckedTarget"
    assert type(Engine(TinyTarget(), "none", check=False).target).__name__ == "TinyTarget"


@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_the_cost_policy_changes_no_token(drafter: str) -> None:
    prompts = [[1, 5, 9, 2], [3, 3, 8], [9, 8, 9, 8, 9, 8, 9]]
    engine = Engine(TinyTarget(), drafter, policy="cost", budget=6)
    got = engine.generate(prompts, max_tokens=60, temperature=0.6, seed=3)
    want = Engine(TinyTarget(), "none").generate(prompts, max_tokens=60, temperature=0.6, seed=3)
    assert [out.tokens for out in got] == [out.tokens for out in want]


def test_every_call_works_with_its_defaults_alone() -> None:
    """A method failed on its documented default arguments."""
    from specdec import Request

    engine = Engine(TinyTarget())
    [out] = engine.generate([1, 2])
    assert (len(out.tokens), out.finish_reason, out.text, out.logprobs) == (128, "length", "", None)
    assert list(engine.stream([1, 2]))[-1].completion is not None
    session = engine.session()
    [name] = session.add(Request([1, 2]))
    session.propose()
    session.abort(name)
    assert [one.finish_reason for one in session.run()] == ["abort"]
    engine.abort("nobody")
    for drafter in ("none", "ngram"):
        assert Engine(TinyTarget(), drafter).generate([1, 2])[0].tokens == out.tokens


def test_a_stream_refuses_bad_options_at_the_call() -> None:
    with pytest.raises(OptionError, match="n=2"):
        Engine(TinyTarget()).stream([1, 2], n=2)
    with pytest.raises(OptionError, match="empty"):
        Engine(TinyTarget()).stream([])


def test_an_id_in_use_is_refused_and_free_again_afterwards() -> None:
    session = Engine(TinyTarget()).session([Request([1, 2], SamplingParams(max_tokens=4), id="a")])
    with pytest.raises(OptionError, match="'a'"):
        session.add(Request([3], SamplingParams(max_tokens=4), id="a"))
    session.step()
    session.abort("a")
    while session.active:
        session.step()
    assert session.add(Request([3], SamplingParams(max_tokens=4), id="a")) == ["a"]
    session.close()
