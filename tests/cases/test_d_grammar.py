"""Regular expressions and JSON schemas along drafted paths."""

from __future__ import annotations

import json
import re

import pytest
import torch
from case_helpers import SHAPES, TreeEcho, assert_same, plain, words
from specdec_drafters.ngram import Ngram
from tokenizers import Tokenizer

from specdec import Engine, OptionError, SamplingParams
from specdec.drafter import Drafter, DrafterSpec
from specdec.testing import Echo, RandomTree, ScriptedDrafter, TableTarget
from specdec.types import Context, Draft

pytest.importorskip("xgrammar")

SPELLED = ["#", *"abcdefghijklmnopqrstuvwxyz", *"0123456789", *'"{}[]:,. -', "cat", "ca", '"}', "</s>"]
ID = {word: i for i, word in enumerate(SPELLED)}
EOS = ID["</s>"]
V = len(SPELLED)
ENUM = {"enum": ["cat", "car"]}
LETTERS_CAX = [ID["c"], ID["a"], ID["x"]]


def tokenizer() -> Tokenizer:
    return words(SPELLED, special=["</s>"])


def target(eos: bool = True, seed: int = 0, favours: str = "") -> TableTarget:
    """Random logits by the last two tokens; `favours` are made likely."""

    def logits(tokens: list[int]) -> torch.Tensor:
        dice = torch.Generator().manual_seed(seed + 997 * tokens[-1] + sum(tokens[-2:-1]))
        row = torch.randn(V, generator=dice)
        row[[ID[c] for c in favours]] += 4.0
        return row

    return TableTarget(logits, vocab_size=V, eos_id=EOS if eos else None, max_len=200)


def ids(text: str) -> list[int]:
    return [ID[c] for c in text]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "script",
    [
        [LETTERS_CAX] * 20,
        [ids('"cax"')] * 20,
        [ids('"car"'), ids("zzzz")] * 10,
        [[ID['"'], ID["ca"], ID["x"]]] * 20,
        [[-1, -1, -1]] * 20,
        [[ID['"'], -1, -1]] * 20,
        [[V, V + 5]] * 20,
        [[EOS, EOS]] * 20,
        [[]] * 20,
    ],
    ids=str,
)
def test_drafts_that_break_the_schema_change_nothing(script: list[list[int]], temperature: float) -> None:
    """A draft that broke the schema left the output stuck at its first token; padding of -1 overflowed the matcher."""
    params = SamplingParams(max_tokens=12, temperature=temperature, seed=2, json_schema=ENUM)
    want = plain(target(), [[1], [2, 3]], params, tokenizer=tokenizer())
    got = Engine(target(), ScriptedDrafter(script), tokenizer=tokenizer(), budget=6).generate([[1], [2, 3]], params)
    assert_same(got, want)
    assert {json.loads(out.text) for out in got} <= {"cat", "car"}
    assert {out.finish_reason for out in got} == {"stop"}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("regex", [r"(ab|ba){3,6}", r"[a-d]{5}", r"x?y{4,9}z", r"cat(cat)*e"])
@pytest.mark.parametrize("name", ["trees", "ngram", "chain", "tree"])
def test_the_text_matches_the_regex_with_every_drafter(regex: str, temperature: float, name: str) -> None:
    """Draft rows were not masked, so that a drafted token could leave the grammar."""
    prompts = [[1], [2, 3], ids("catcat")]
    params = SamplingParams(max_tokens=30, temperature=temperature, seed=4, regex=regex)
    want = plain(target(), prompts, params, tokenizer=tokenizer())
    answers = {tuple(prompt): one.tokens for prompt, one in zip(prompts, want, strict=True)}
    drafter: Drafter = {
        "trees": lambda: RandomTree(narrow=6),
        "ngram": lambda: Ngram(),
        "chain": lambda: Echo(answers, rate=0.8),
        "tree": lambda: TreeEcho(answers),
    }[name]()
    got = Engine(target(), drafter, tokenizer=tokenizer(), budget=7, check=True).generate(prompts, params)
    assert_same(got, want)
    for out in got:
        assert out.finish_reason == "length" or re.fullmatch(regex, out.text)


class PastTheEnd(Drafter):
    """Proposes the grammar's text and then junk; as a tree if asked."""

    def __init__(self, answer: list[int], junk: list[int], tree: bool) -> None:
        self.line, self.tree = [*answer, *junk], tree
        self.spec = DrafterSpec(trees=tree)

    def propose(self, ctx: Context) -> Draft:
        rows = [self.line[int(n) - 1 :][: ctx.budget - 1] for n in ctx.lengths]
        width = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows], dtype=torch.int64)
        chain = Draft.chain(ctx.anchor, tokens.view(len(rows), width), counts=torch.tensor([len(r) for r in rows]))
        return Draft(chain.tokens, chain.parents) if self.tree else chain


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("junk", ["zzzz", "cccc", "atat"])
@pytest.mark.parametrize("eos", [True, False])
@pytest.mark.parametrize("budget", [1, 2, 3, 4, 8])
def test_a_grammar_that_ends_inside_a_block_ends_the_output_there(
    eos: bool, junk: str, tree: bool, budget: int
) -> None:
    """A round went on with a request whose grammar had just finished, and its tokens leaked into the output."""
    drafter = PastTheEnd(ids("cat") + [EOS] * eos, ids(junk), tree)
    engine = Engine(target(eos, favours=junk), drafter, tokenizer=tokenizer(), budget=budget)
    [out] = engine.generate([[1]], max_tokens=12, regex="c(a)(t)")
    assert out.text == "cat"
    assert out.tokens in (ids("cat") + [EOS] * eos, [ID["cat"]] + [EOS] * eos, [ID["ca"], ID["t"]] + [EOS] * eos)
    assert out.finish_reason == "stop"


@pytest.mark.parametrize("budget", [1, 8])
def test_processors_are_not_called_after_the_grammar_has_ended(budget: int) -> None:
    calls: list[list[int]] = []

    def note(tokens: list[int], logits: torch.Tensor) -> torch.Tensor:
        calls.append(list(tokens))
        return logits

    drafter = PastTheEnd(ids("cat"), ids("zzzz"), tree=False)
    engine = Engine(target(eos=False, favours="catz"), drafter, tokenizer=tokenizer(), budget=budget)
    [out] = engine.generate(
        [[1]], max_tokens=12, regex="cat", logits_processors=[note], logit_bias={ID["cat"]: -99, ID["ca"]: -99}
    )
    assert out.tokens == ids("cat")
    assert calls == [[1, *out.tokens[:i]] for i in range(3)]


@pytest.mark.parametrize("budget", [1, 8])
def test_a_grammar_that_ends_with_the_last_token_allowed_is_a_stop(budget: int) -> None:
    drafter = PastTheEnd(ids("cat"), [], tree=False)
    engine = Engine(target(eos=False), drafter, tokenizer=tokenizer(), budget=budget)
    [out] = engine.generate([[1]], max_tokens=3, regex="cat", logit_bias={ID["cat"]: -99, ID["ca"]: -99})
    assert (out.tokens, out.finish_reason) == (ids("cat"), "stop")


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_a_batch_follow_their_own_grammars(shape: str) -> None:
    """Drafts were validated against the matcher of another request."""
    prompts = [[1], [2], [3], [4, 4]]
    grammars: list[dict[str, object]] = [{"regex": "[ab]{8}"}, {}, {"json_schema": ENUM}, {"regex": "[0-9]{2,6}"}]
    params = [SamplingParams(max_tokens=14, temperature=0.9, seed=i, **g) for i, g in enumerate(grammars)]
    alone = [plain(target(), [p], s, tokenizer=tokenizer())[0] for p, s in zip(prompts, params, strict=True)]
    answers = {tuple(p): one.tokens for p, one in zip(prompts, alone, strict=True)}
    engine = Engine(target(), SHAPES[shape](answers, rate=0.8), tokenizer=tokenizer(), budget=5)
    assert_same(engine.generate(prompts, params), alone)


def test_a_json_object_is_whole_with_drafts() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0}},
        "required": ["a"],
        "additionalProperties": False,
    }
    params = SamplingParams(max_tokens=60, temperature=1.0, seed=3, json_schema=json.dumps(schema))
    drafter = ScriptedDrafter([ids('{"a":1}'), ids('{"b":1}'), ids("a")] * 20)
    [out] = Engine(target(), drafter, tokenizer=tokenizer(), budget=6).generate([[1]], params)
    assert out.finish_reason == "stop"
    assert list(json.loads(out.text)) == ["a"]
    assert_same([out], plain(target(), [[1]], params, tokenizer=tokenizer()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regex": "(unclosed"}, "regex '[(]unclosed' cannot be compiled"),
        ({"json_schema": "{no json"}, "json_schema .* cannot be compiled"),
        ({"regex": "a", "json_schema": "{}"}, "regex and json_schema were both given"),
    ],
)
def test_a_grammar_that_cannot_hold_is_refused_by_name(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Engine(target(), "none", tokenizer=tokenizer()).generate([[1]], **options)
