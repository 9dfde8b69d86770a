"""What a round costs for 1, 2, 4, ... nodes: the model's own forward, the engine's forward, and a whole round.

Writes JSON with command, versions, machine and medians over interleaved repeats. overhead_share is
(round - forward) / forward, of the engine's own forward: what drafting's bookkeeping adds to it.

    python verify_cost.py --model smollm2 --dtype bf16 --repeat 20 --json results/verify_cost.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import torch

from specdec import run_round
from specdec.bench.document import write
from specdec.bench.machine import command, machine, versions
from specdec.bench.plain import load_plain
from specdec.drafter import Drafter, DrafterSpec
from specdec.hf import HFTarget
from specdec.lanes import Serial
from specdec.registry import VERIFIERS, build
from specdec.sampling import Sampling
from specdec.types import Context, Draft

_NODES = (1, 2, 4, 8, 16, 32)


class Guess(Drafter):
    """Proposes the same token over and over: a draft that costs nothing to make."""

    spec = DrafterSpec(window=8)

    def propose(self, ctx: Context) -> Draft:
        return Draft.chain(ctx.anchor, ctx.anchor[:, None].expand(-1, ctx.budget - 1))


class Bench:
    """One sequence of `cached` tokens in slot 0, scored in three ways."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.target = HFTarget.load(args.model, dtype=args.dtype, slots=1, max_len=args.cached + 64)
        self.model = load_plain(args.model, args.dtype, "cpu")
        self.prompt = torch.randint(3, self.target.spec.vocab_size, (args.cached,))
        self.slot = torch.zeros(1, dtype=torch.int64)
        self.rule, self.drafter, self.lanes = build(VERIFIERS, "match"), Guess(), Serial()
        self.target.open(self.slot, [self.prompt])
        with torch.inference_mode():
            self.past = self.model(self.prompt[None], use_cache=True).past_key_values

    def context(self, nodes: int) -> Context:
        lengths = torch.tensor([len(self.prompt) + 1])
        tail = torch.cat([self.prompt[-7:], self.prompt[:1]])[None]
        return Context(self.slot, lengths, tail, nodes, Sampling.uniform(1))

    def own_forward(self, nodes: int) -> None:
        """Transformers' forward of `nodes` tokens over its cache, which is cut back after the clock stopped."""
        with torch.inference_mode():
            self.model(self.prompt[None, :nodes], past_key_values=self.past, use_cache=True).logits.argmax(-1).tolist()

    def cut_back(self, nodes: int) -> None:
        self.past.crop(-nodes)

    def forward(self, nodes: int) -> None:
        ctx = self.context(nodes)
        self.target.score(ctx.slots, ctx.lengths, self.drafter.propose(ctx)).logits.argmax(-1).tolist()

    def round(self, nodes: int) -> None:
        done = run_round(self.target, self.drafter, self.rule, self.context(nodes), lanes=self.lanes)
        done.verdict.accepted.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--cached", type=int, default=256, help="tokens in the cache")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    content = {
        "command": command(),
        "versions": versions(),
        "machine": machine(),
        "settings": {"model": Path(args.model).name, "dtype": args.dtype, "cached": args.cached, "repeat": args.repeat},
        "rows": measured(Bench(args), args.repeat),
    }
    if args.json:
        write(args.json, content)
    json.dump(content, sys.stdout, indent=1)
    print()


def measured(bench: Bench, repeat: int) -> list[dict[str, Any]]:
    """Median milliseconds of every way and width.

    They take turns in every order, so that load hits all alike and each runs as often after the other model's
    forward, which leaves that model's weights in the caches.
    """
    orders = list(permutations([("own", bench.own_forward), ("forward", bench.forward), ("round", bench.round)]))
    times: dict[tuple[str, int], list[float]] = defaultdict(list)
    for turn in range(repeat + 1):
        for nodes in _NODES:
            for way, call in orders[turn % len(orders)]:
                ms = timed(call, nodes)
                if turn:  # the first turn warms up
                    times[way, nodes].append(ms)
            bench.cut_back(nodes)
    rows = []
    for nodes in _NODES:
        own, forward, whole = (median(times[way, nodes]) for way in ("own", "forward", "round"))
        rows.append(
            {
                "nodes": nodes,
                "transformers_forward_ms": round(own, 3),
                "forward_ms": round(forward, 3),
                "round_ms": round(whole, 3),
                "round_quartiles_ms": [round(q, 3) for q in quantiles(times["round", nodes], n=4)],
                "overhead_share": round((whole - forward) / forward, 4),
                "forward_vs_one_node": round(forward / median(times["forward", 1]), 3),
                "transformers_vs_forward": round(own / forward, 3),
            }
        )
    return rows


def timed(call: Callable[[int], None], nodes: int) -> float:
    start = perf_counter()
    call(nodes)
    return (perf_counter() - start) * 1e3


if __name__ == "__main__":
    main()
