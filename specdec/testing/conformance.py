"""The one test of the library, for anybody's part: a draft may change when a token comes, never which."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from specdec.drafter import Drafter
from specdec.engine import Engine
from specdec.params import SamplingParams
from specdec.sampling import Sampling
from specdec.target import Target
from specdec.testing.tiny import TinyTarget
from specdec.types import Completion, Draft, Verdict
from specdec.verifier import Verifier

TEMPERATURES = (0.0, 0.7, 1.3)
BUDGETS = (1, 2, 5, 9)
PROMPTS = ([1, 5, 9, 2], [3, 3, 8], [7, 1, 30, 22, 4, 4], [2], [9, 8, 9, 8, 9, 8, 9])


def assert_conforms(
    make: Callable[[Target], Drafter],
    *,
    target: Callable[[], Target] = TinyTarget,
    verifier: str | Verifier = "match",
    temperatures: Sequence[float] = TEMPERATURES,
    budgets: Sequence[int] = BUDGETS,
    max_tokens: int = 24,
) -> None:
    """Fails unless the drafter's output equals plain decoding, and every call keeps its contract.

    Alone and in ragged batches, at each temperature and budget, with more requests than slots, and again in slots that
    were used before; then with a stop token, with penalties, with min_tokens and with logprobs. make: from a target to
    a fresh drafter.
    """
    for temperature in temperatures:
        params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=11, ignore_eos=True)
        plain = Engine(target(), "none", verifier).generate(PROMPTS, params)
        for budget in budgets:
            goal = target()
            engine = Engine(goal, make(goal), verifier, budget=budget, check=True)
            where = f"temperature {temperature}, budget {budget}"
            for what, prompts, want in _batches(plain):
                _assert_equal(f"{what}, {where}", prompts, engine.generate(prompts, params), want)
            assert engine.free_slots == goal.spec.slots, f"{engine.free_slots} of {goal.spec.slots} slots came back"
        goal = target()
        engine = Engine(goal, make(goal), verifier, budget=max(budgets), check=True)
        for what, listed in _options(params, plain):
            want = Engine(target(), "none", verifier).generate(PROMPTS, listed)
            _assert_equal(f"{what}, temperature {temperature}", PROMPTS, engine.generate(PROMPTS, listed), want)


def assert_rule_conforms(rule: Verifier, *, nodes: int = 7, vocab_size: int = 11) -> None:
    """Fails unless the rule's verdicts are paths of the draft, leave its inputs as they were, and treat rows alone."""
    for seed in range(20):
        dice = torch.Generator().manual_seed(seed)
        draft = _random_draft(dice, 4, nodes, vocab_size, chain=rule.chains_only)
        logits = torch.randn(4, nodes, vocab_size, generator=dice) * 2
        sampling = Sampling.uniform(4, 0.0 if seed % 4 == 0 else 0.9, seed)
        lengths = torch.tensor([3, 9, 4, 20])
        before = logits.clone(), draft.tokens.clone(), draft.parents.clone()
        verdict = _accept(rule, draft, logits, sampling, lengths)
        for was, now in zip(before, (logits, draft.tokens, draft.parents), strict=True):
            assert torch.equal(was, now), f"{type(rule).__name__} wrote into its input"
        order = torch.tensor([2, 0, 3, 1])
        mixed = Draft(draft.tokens[order], draft.parents[order], linear=draft.linear)
        again = _accept(rule, mixed, logits[order], sampling.rows(order), lengths[order])
        assert torch.equal(verdict.path[order], again.path), "a row's verdict depends on its neighbours"
        assert torch.equal(verdict.next_token[order], again.next_token), "a row's draw depends on its neighbours"


def assert_target_conforms(make: Callable[[], Target], *, tolerance: float = 1e-4) -> None:
    """Fails unless scoring a tree equals prefilling each of its paths, and committing one leaves the right cache."""
    target, fresh = make(), make()
    prompt = torch.tensor([1, 5, 2, 3])
    slots, lengths = torch.tensor([1]), torch.tensor([5])
    draft = Draft(torch.tensor([[4, 1, 2, 3, 1, 5]]), torch.tensor([[-1, 0, 0, 2, 2, 3]]))
    for path in ([0, 2, 3, 5], [0, 2, 4], [0]):
        target.open(slots, [prompt])
        scores = target.score(slots, lengths, draft)
        for node in range(draft.nodes):
            tokens = draft.tokens[0][draft.ancestors[0, node]]
            want = fresh.open(torch.tensor([0]), [torch.cat([prompt, tokens])]).logits[0, 0]
            assert torch.allclose(scores.logits[0, node], want, atol=tolerance), f"node {node} differs from its path"
        padded = torch.tensor([path + [-1] * (draft.nodes - len(path))])
        target.commit(slots, lengths, draft, Verdict(padded, torch.tensor([len(path) - 1]), torch.tensor([6])))
        after = target.score(slots, lengths + len(path), Draft.empty(torch.tensor([6]))).logits[0, 0]
        text = torch.cat([prompt, draft.tokens[0, path], torch.tensor([6])])
        want = fresh.open(torch.tensor([2]), [text]).logits[0, 0]
        assert torch.allclose(after, want, atol=tolerance), (
            f"the cache after the committed tree path {path} differs from a fresh one"
        )


def _batches(plain: Sequence[Completion]) -> Iterator[tuple[str, list[list[int]], list[Completion]]]:
    answers = list(plain)
    prompts = [list(prompt) for prompt in PROMPTS]
    yield "alone", prompts[:1], answers[:1]
    yield "batch of three", prompts[:3], answers[:3]
    yield "more requests than slots", prompts * 2, answers * 2
    yield "slots used before, in another order", prompts[::-1], answers[::-1]


def _options(params: SamplingParams, plain: Sequence[Completion]) -> Iterator[tuple[str, list[SamplingParams]]]:
    """What must act at each token, drafted or not."""
    middle = [replace(params, stop_token_ids=[answer.tokens[len(answer.tokens) // 2]]) for answer in plain]
    yield "with a stop token", middle
    penalties = replace(params, frequency_penalty=1.5, presence_penalty=0.5, repetition_penalty=1.3)
    yield "with penalties", [penalties] * len(plain)
    yield "with min_tokens", [replace(p, min_tokens=len(plain[0].tokens) - 2) for p in middle]
    yield "with logprobs", [replace(params, logprobs=2)] * len(plain)


def _assert_equal(
    what: str, prompts: Sequence[Sequence[int]], got: Sequence[Completion], want: Sequence[Completion]
) -> None:
    for prompt, one, other in zip(prompts, got, want, strict=True):
        where = f"{what}, prompt {list(prompt)}"
        assert one.tokens == other.tokens, f"{where}: {one.tokens} is not {other.tokens}, as plain decoding gives"
        assert one.finish_reason == other.finish_reason, f"{where}: {one.finish_reason} is not {other.finish_reason}"
        assert 1 + one.stats.emitted == len(one.tokens), f"{where}: stats count {one.stats.emitted} tokens of rounds"
        noted = None if one.logprobs is None else [entry.token for entry in one.logprobs]
        assert noted in (None, one.tokens), f"{where}: log-probabilities are of {noted}"


def _accept(rule: Verifier, draft: Draft, logits: torch.Tensor, sampling: Sampling, lengths: torch.Tensor) -> Verdict:
    from specdec.check import check_verdict
    from specdec.types import Scores

    verdict = rule.accept(draft, Scores(logits), sampling, lengths)
    check_verdict(verdict, draft, f"{type(rule).__name__}.accept")
    return verdict


def _random_draft(dice: torch.Generator, rows: int, nodes: int, vocab: int, *, chain: bool) -> Draft:
    tokens = torch.randint(vocab, (rows, nodes), generator=dice)
    if chain:
        return Draft.chain(tokens[:, 0], tokens[:, 1:], counts=torch.randint(nodes, (rows,), generator=dice))
    parents = [[-1] + [int(torch.randint(i, (1,), generator=dice)) for i in range(1, nodes)] for _ in range(rows)]
    return Draft(tokens, torch.tensor(parents))
