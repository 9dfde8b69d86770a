"""Small targets, tokenizers and drafters that know the answer, for cases that can be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from specdec import Engine, SamplingParams
from specdec.drafter import Drafter, DrafterSpec
from specdec.target import Target
from specdec.testing import Echo, TableTarget
from specdec.types import Completion, Context, Draft

PAD = "\u2400"


def next_is(following: Mapping[int, int], vocab: int, **options: object) -> TableTarget:
    """A target whose argmax after each token is `following`; the rest of the logits tells ids apart."""
    table = torch.arange(vocab).mul(-0.01).expand(vocab, vocab).clone()
    for token, after in following.items():
        table[token, after] = 6.0
    return TableTarget(table, **options)  # type: ignore[arg-type]  # options of TableTarget


def counting(vocab: int = 20, **options: object) -> TableTarget:
    """After each token comes the next number."""
    return next_is({i: (i + 1) % vocab for i in range(vocab)}, vocab, **options)


def reciting(prompt: Sequence[int], answer: Sequence[int], vocab: int, **options: object) -> TableTarget:
    """After the prompt comes the answer, whatever the other prompts' rows say; past its end comes token 0."""
    text = [*prompt, *answer]

    def logits(tokens: list[int]) -> torch.Tensor:
        row = torch.arange(vocab) * -0.01
        if len(tokens) < len(text) and tokens == text[: len(tokens)]:
            row[text[len(tokens)]] = 6.0
        return row

    return TableTarget(logits, vocab_size=vocab, **options)  # type: ignore[arg-type]  # options of TableTarget


def words(spelled: Sequence[str], special: Sequence[str] = ()) -> Tokenizer:
    """Token i is spelled[i]; text is encoded letter by letter, tokens are joined without spaces."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(spelled)}, unk_token=spelled[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(special))
    return tokenizer


class TreeEcho(Echo):
    """Proposes the answer as one branch of a tree, after a wrong sibling at every depth."""

    spec = DrafterSpec(trees=True)

    def propose(self, ctx: Context) -> Draft:
        """Nodes 1, 3, 5, ... are wrong; 2, 4, 6, ... are the chain of Echo."""
        depth = (ctx.budget - 1) // 2
        if depth == 0:
            return Draft.empty(ctx.anchor)
        chain = super().propose(
            Context(ctx.slots, ctx.lengths, ctx.tail, depth + 1, ctx.sampling, ctx.wants_q, ctx.room)
        )
        right, used = chain.tokens[:, 1:], chain.parents[:, 1:] >= 0
        tokens = torch.stack([(right + 1) % self._vocab, right], -1).flatten(1)
        parents = (torch.arange(depth) * 2)[:, None].expand(depth, 2).flatten()
        parents = torch.where(used.repeat_interleave(2, 1), parents, -1)
        return Draft(torch.cat([ctx.anchor[:, None], tokens], 1), torch.cat([chain.parents[:, :1], parents], 1))


SHAPES: dict[str, type[Echo]] = {"chain": Echo, "tree": TreeEcho}


def plain(
    target: Target, prompts: Sequence[Sequence[int]], params: SamplingParams, **options: object
) -> list[Completion]:
    """What plain decoding gives."""
    return Engine(target, "none", **options).generate(prompts, params)  # type: ignore[arg-type]  # engine options


def knowing(
    make: Callable[[], Target], prompts: Sequence[Sequence[int]], params: SamplingParams, shape: str
) -> Drafter:
    """A drafter of the given shape that knows what plain decoding would go on to say, past any stop."""
    free = SamplingParams(
        max_tokens=params.max_tokens + 16, temperature=params.temperature, seed=params.seed, ignore_eos=True
    )
    answers = {tuple(p): one.tokens for p, one in zip(prompts, plain(make(), prompts, free), strict=True)}
    return SHAPES[shape](answers)


def both(
    make: Callable[[], Target],
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    shape: str,
    *,
    budget: int = 9,
    **options: object,
) -> tuple[list[Completion], list[Completion]]:
    """What a drafter that knows the answer leads to, and what plain decoding gives."""
    drafter = knowing(make, prompts, params, shape)
    engine = Engine(make(), drafter, budget=budget, check=True, **options)  # type: ignore[arg-type]  # engine options
    return engine.generate(prompts, params), plain(make(), prompts, params, **options)


def assert_same(got: Sequence[Completion], want: Sequence[Completion]) -> None:
    """Everything a user sees is equal."""
    for one, other in zip(got, want, strict=True):
        assert (one.tokens, one.text, one.finish_reason) == (other.tokens, other.text, other.finish_reason)
