"""Penalties, filters, seeds and the log of a batch, against the same done token by token."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specdec_sglang.batches import BatchRows, new_requests
from specdec_sglang.rows import NO_TOP_K, Filters, Rows, seed_of
from specdec_sglang.shaping import BatchShaper, FirstShaper
from specdec_sglang.textlog import TextLog

from specdec.target import TargetSpec
from specdec.testing import assert_capture_safe
from specdec.types import Context, Draft, Scores
from specdec.verifier import verdict_of

V = 12


def request(rid: str = "r", prompt: list[int] | None = None, output: list[int] | None = None, **params: Any) -> Any:
    """A request as the server holds one."""
    usual = {
        "temperature": 1.0, "top_k": NO_TOP_K, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_new_tokens": 0, "stop_token_ids": None,
        "logit_bias": None, "sampling_seed": None, "custom_params": None, "max_new_tokens": 9,
    }  # fmt: skip
    return SimpleNamespace(
        rid=rid,
        origin_input_ids=prompt or [1, 2],
        output_ids=output or [],
        eos_token_ids={0},
        session_id=None,
        tokenizer=SimpleNamespace(eos_token_id=0, additional_stop_token_ids=None),
        sampling_params=SimpleNamespace(**usual | params),
    )


def batch_of(reqs: list[Any], **more: Any) -> Any:
    info = SimpleNamespace(has_custom_logit_processor=False)
    return SimpleNamespace(reqs=reqs, has_grammar=False, sampling_info=info, **more)


def context(log: TextLog, rows: Rows, length: int) -> Context:
    slots, lengths = torch.tensor([3]), torch.tensor([length])
    return Context(slots, lengths, log.tail(slots, lengths, 4), 8, rows.sampling)


def plain(req: Any, output: list[int], logits: list[float]) -> list[float]:
    """The logits of one step, as a loop over the vocabulary."""
    p, made = req.sampling_params, []
    for token, value in enumerate(logits):
        count = output.count(token)
        value -= p.frequency_penalty * count + p.presence_penalty * (count > 0)
        if len(output) < p.min_new_tokens and token in ({0} | set(p.stop_token_ids or ())):
            value = -torch.inf
        if count:
            value = value * p.repetition_penalty if value < 0 else value / p.repetition_penalty
        made.append(value + (p.logit_bias or {}).get(str(token), 0.0))
    return made


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, V - 1), min_size=1, max_size=6),
    st.sampled_from(
        [
            {"frequency_penalty": 0.5},
            {"presence_penalty": 0.5, "min_new_tokens": 4},
            {"repetition_penalty": 1.5},
            {"repetition_penalty": 0.7, "frequency_penalty": 0.3, "stop_token_ids": {5}, "min_new_tokens": 3},
            {"logit_bias": {"3": 2.5}},
        ]
    ),
    st.integers(0, 999),
)
def test_every_node_is_shaped_by_its_own_path(output: list[int], params: dict[str, Any], seed: int) -> None:
    req = request(**params)
    log = TextLog(5, 40, 8, "cpu")
    log.open(3, torch.tensor([1, 2]), 2, 20)
    log.append(torch.tensor([3]), torch.tensor([2]), torch.tensor([output]))
    rows = Rows.of([req], V, "cpu", salt=0)
    dice = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, 5, V, generator=dice)
    tokens = torch.randint(V, (1, 5), generator=dice)
    tokens[0, 0] = output[-1]
    draft = Draft(tokens, torch.tensor([[-1, 0, 1, 0, -1]]))
    shaper = BatchShaper(batch_of([req]), rows, log)
    got = shaper(context(log, rows, 2 + len(output)), draft, Scores(logits.clone())).logits
    t = tokens[0].tolist()
    for node, path in ((0, []), (1, [t[1]]), (2, [t[1], t[2]]), (3, [t[3]])):
        expected = plain(req, output + path, logits[0, node].tolist())
        assert got[0, node].tolist() == pytest.approx(expected, abs=1e-5)


def cut(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> set[int]:
    """The tokens that stay, one by one from the best."""
    probs = (logits / temperature).softmax(-1)
    order = sorted(range(V), key=lambda token: (-float(probs[token]), token))
    kept, before = set(), 0.0
    for rank, token in enumerate(order):
        if rank == 0 or (rank < top_k and before <= top_p and probs[token] >= probs[order[0]] * min_p):
            kept.add(token)
        before += float(probs[token])
    return kept


@settings(deadline=None)
@given(
    st.integers(0, 9999), st.sampled_from([1, 3, NO_TOP_K]), st.sampled_from([0.4, 0.8, 1.0]), st.sampled_from([0, 0.2])
)
def test_filters(seed: int, top_k: int, top_p: float, min_p: float) -> None:
    logits = torch.randn(1, 2, V, generator=torch.Generator().manual_seed(seed)) * 2
    filters = Filters(torch.tensor([top_k]), torch.tensor([top_p]), torch.tensor([min_p]))
    got = filters(logits, torch.tensor([0.7]))
    for node in range(2):
        kept = set(torch.isfinite(got[0, node]).nonzero().flatten().tolist())
        assert kept == cut(logits[0, node], 0.7, top_k, top_p, min_p)
    assert torch.equal(filters(logits, torch.tensor([0.0])), logits)


def test_rows() -> None:
    greedy, drawn = request("a", top_k=1, temperature=1.0), request("b", top_p=0.9, temperature=0.5, sampling_seed=4)
    rows = Rows.of([greedy, drawn], V, "cpu", salt=1)
    assert rows.sampling.temperature.tolist() == [0.0, 0.5]
    assert rows.sampling.seed[1] == 4
    assert rows.filters is not None
    assert rows.penalties is None
    assert rows.bias is None
    assert Rows.of([greedy], V, "cpu", salt=1).filters is None
    assert Rows.of([greedy], V, "cpu", salt=1).sampling.rule.greedy


def test_seeds_without_one_differ_by_request_and_server() -> None:
    seeds = {seed_of(request(rid), salt) for rid in "abc" for salt in (1, 2)}
    assert len(seeds) == 6
    assert seed_of(request("a"), 1) == seed_of(request("a"), 1)


def test_rows_are_made_again_when_the_batch_changes() -> None:
    rows = BatchRows(V, torch.device("cpu"), 0)
    first = rows.of([request("a")])
    assert rows.of([request("a")]) is first
    assert rows.of([request("a"), request("b")]) is not first


def test_the_log_follows_a_request() -> None:
    log = TextLog(5, 30, 4, "cpu")
    slots, lengths = torch.tensor([3]), torch.tensor([3])
    log.open(3, torch.tensor([7, 8]), 2, 4)
    log.append(slots, torch.tensor([2]), torch.tensor([[9]]))
    assert log.tail(slots, lengths, 4).tolist() == [[-1, 7, 8, 9]]
    assert log.room(slots, lengths).tolist() == [2]  # three more tokens, the last of which a round gives for free
    draft = Draft(torch.tensor([[9, 4, 5]]), torch.tensor([[-1, 0, 1]]))
    verdict = verdict_of(draft, torch.tensor([[True, True, False]]), torch.tensor([[4, 6, 0]]))
    log.commit(slots, lengths, draft, verdict)
    lengths = torch.tensor([5])
    assert log.tail(slots, lengths, 3).tolist() == [[9, 4, 6]]
    assert log.output(3, 5) == [9, 4, 6]
    assert log.emitted(slots, lengths).tolist() == [3]
    assert log.counts(slots, lengths, V, None)[0].nonzero().flatten().tolist() == [4, 6, 9]
    assert log.room(slots, lengths).tolist() == [0]


def test_a_request_begins_where_its_prompt_is_whole() -> None:
    """A chunk in the middle begins nothing; a request that was set back begins with what it had said."""
    spec = TargetSpec(vocab_size=V, hidden_size=4, num_layers=1, max_len=64, slots=8)
    reqs = [
        request("a", [1, 2, 3]),
        request("b", [1, 2, 3, 99]),
        request("c", [4, 5], [6], custom_params={"specdec_owner": "o"}),
    ]
    slots = torch.tensor([5, 6, 7])
    batch = SimpleNamespace(reqs=reqs, req_pool_indices_cpu=slots, prefix_lens=[0, 1, 2], extend_lens=[2, 3, 1])
    found = new_requests(batch, spec)
    assert [(item.row, item.slot, item.request.id, item.prompt) for item in found] == [(1, 6, "b", 4), (2, 7, "c", 2)]
    assert found[0].request.ids.tolist() == [1, 2, 3, 0]
    assert found[1].request.ids.tolist() == [4, 5, 6]
    assert found[1].request.owner == "o"


class Grow:
    """A processor that forbids the last token of the text it is shown."""

    def __call__(self, logits: torch.Tensor, params: list[Any]) -> torch.Tensor:
        logits = logits.clone()
        for row, own in enumerate(params):
            logits[row, own["__req__"].output_ids[-1]] = -torch.inf
            assert own["__req__"].rid == "r"
        return logits


def test_processors_see_each_nodes_text() -> None:
    req = request()
    req.sampling_params.custom_params = {"__req__": req}
    info = SimpleNamespace(
        has_custom_logit_processor=True,
        custom_logit_processor={1: SimpleNamespace(processor=Grow(), rows=[0])},
        custom_params=[req.sampling_params.custom_params],
    )
    batch = SimpleNamespace(reqs=[req], has_grammar=False, sampling_info=info)
    log = TextLog(5, 30, 4, "cpu")
    log.open(3, torch.tensor([1, 2]), 2, 9)
    log.append(torch.tensor([3]), torch.tensor([2]), torch.tensor([[6]]))
    rows = Rows.of([req], V, "cpu", salt=0)
    draft = Draft(torch.tensor([[6, 4, 5]]), torch.tensor([[-1, 0, 1]]))
    got = BatchShaper(batch, rows, log)(context(log, rows, 3), draft, Scores(torch.zeros(1, 3, V))).logits
    assert [row.isinf().nonzero().flatten().tolist() for row in got[0]] == [[6], [4], [5]]
    req.output_ids = [8]
    first = FirstShaper(batch, rows, log)(
        context(log, rows, 3), Draft.empty(torch.tensor([0])), Scores(torch.zeros(1, 1, V))
    )
    assert first.logits[0, 0].isinf().nonzero().flatten().tolist() == [8]


def test_nothing_waits_for_a_device() -> None:
    """Filters, penalties and the log's reads run on tensors without data."""
    rows = Rows.of([request(frequency_penalty=0.5, top_p=0.8)], V, "cpu", salt=0)
    assert rows.filters is not None
    assert rows.penalties is not None
    draft = Draft(torch.tensor([[6, 4, 5]]), torch.tensor([[-1, 0, 1]]))
    assert_capture_safe(_filtered, rows.filters, torch.zeros(1, 3, V), rows.sampling.temperature)
    counts, emitted = torch.zeros(1, 3, V), torch.zeros(1, 3)
    assert_capture_safe(_penalised, rows.penalties, torch.zeros(1, 3, V), counts, emitted)
    verdict = verdict_of(draft, draft.used, draft.tokens)
    assert_capture_safe(_logged, torch.tensor([3]), torch.tensor([3]), draft, verdict)


def _filtered(filters: Filters, logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    return filters(logits, temperature)


def _penalised(penalties: Any, *rest: torch.Tensor) -> torch.Tensor:
    return penalties(*rest)


def _logged(slots: torch.Tensor, lengths: torch.Tensor, draft: Draft, verdict: Any) -> torch.Tensor:
    log = TextLog(5, 30, 4, "cpu")
    log.commit(slots, lengths, draft, verdict)
    return log.tail(slots, lengths, 3) + log.room(slots, lengths)[:, None] + log.counts(slots, lengths, V, None).sum()
