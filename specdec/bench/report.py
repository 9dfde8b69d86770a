"""From samples to the rows of a report, which claim a speed-up only where it is shown to be one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from specdec.bench.compare import Divergence
from specdec.bench.results import BASE, Results
from specdec.bench.runners import COUNTERPARTS, TRANSFORMERS, Runner

ALL = "all"


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether a drafter's tokens are those of plain decoding.

    equal: None where they cannot be compared. withheld: why no ratio is claimed.
    """

    equal: bool | None
    diverged: Mapping[str, Divergence]
    withheld: str | None
    note: str | None


def rows(results: Results, runners: Sequence[Runner], categories: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """One row for each drafter and category, and over all prompts under "all". categories: prompt ids by name."""
    groups = dict(categories)
    if len(groups) > 1 or ALL not in groups:
        groups[ALL] = [prompt for prompts in categories.values() for prompt in prompts]
    return [row(results, runners, runner, name, prompts) for name, prompts in groups.items() for runner in runners]


def row(
    results: Results, runners: Sequence[Runner], runner: Runner, category: str, prompts: Sequence[str]
) -> dict[str, Any]:
    """What one runner did on these prompts; rates and ratios leave out prompts whose output loops, but for *_all."""
    name = runner.name
    kept = [prompt for prompt in prompts if not results.looping(prompt)]
    proof = prove(results, runner, prompts)
    rounds, drafted = results.total(name, kept, "rounds"), results.total(name, kept, "drafted")
    found = {
        "drafter": name,
        "category": category,
        "temperature": results.temperature,
        "prompts": len(prompts),
        "looping_share": _rounded(1 - len(kept) / len(prompts)),
        "tokens_per_s": _rounded(results.rate(name, kept)),
        "tokens_per_s_all": _rounded(results.rate(name, prompts)),
        "tau": _rounded(_over(results.total(name, kept, "emitted"), rounds)),
        "acceptance": _rounded(_over(results.total(name, kept, "accepted"), drafted)),
        "draft_share": _rounded(_draft_share(results, name, kept)),
        "lossless": runner.lossless,
        "tokens_equal": proof.equal,
        "prompts_diverged": len(proof.diverged),
        "first_divergence": _first(proof.diverged),
        "largest_gap": _rounded(max((d.gap for d in proof.diverged.values() if d.gap is not None), default=None), 4),
    }
    return found | _ratios(results, runners, runner, kept, proof)


def prove(results: Results, runner: Runner, prompts: Sequence[str]) -> Proof:
    """Compare a runner's tokens with those of plain decoding."""
    if results.temperature > 0 and runner.lossless and not runner.repeatable:
        return Proof(None, {}, None, "it draws other random numbers: rates are compared, not tokens")
    diverged = results.differences(runner.name, prompts)
    if not diverged:
        return Proof(True, {}, None, None if runner.lossless else "the rule is lossy")
    if not runner.lossless:
        return Proof(False, diverged, None, "the rule is lossy: the text is not the target's own")
    unexplained = {prompt: parted for prompt, parted in diverged.items() if not parted.tie}
    if unexplained:
        prompt, parted = next(iter(unexplained.items()))
        gap = "one ends there" if parted.gap is None else f"gap {parted.gap:.3g} logits"
        reason = f"tokens differ from plain decoding's beyond rounding: prompt {prompt}, token {parted.position}, {gap}"
        return Proof(False, diverged, reason, None)
    return Proof(False, diverged, None, "differs from plain decoding only at near ties that rounding explains")


def _ratios(
    results: Results, runners: Sequence[Runner], runner: Runner, kept: Sequence[str], proof: Proof
) -> dict[str, Any]:
    by_name = {other.name: other for other in runners}
    counterpart = COUNTERPARTS.get(runner.name.split(":")[-1]) if runner.name not in COUNTERPARTS.values() else None
    reasons = [proof.withheld]
    found: dict[str, Any] = {}
    for field, other in (
        ("speedup_vs_none", BASE),
        ("speedup_vs_transformers", TRANSFORMERS),
        ("speedup_vs_counterpart", counterpart),
    ):
        against = by_name.get(other) if other else None
        found[field] = None
        if against is None or proof.withheld:
            continue
        if doubt := prove(results, against, kept).withheld:
            reasons.append(f"{against.name}: {doubt}")
            continue
        found[field] = _rounded(results.ratio(runner.name, against.name, kept))
    spread = [] if proof.withheld else results.spread(runner.name, BASE, kept)
    found["speedup_vs_none_quartiles"] = _quartiles(spread)
    found["withheld"] = "; ".join(reason for reason in reasons if reason) or None
    found["note"] = proof.note
    return found


def _first(diverged: Mapping[str, Divergence]) -> dict[str, Any] | None:
    """The divergence that comes first in its output."""
    if not diverged:
        return None
    prompt, parted = min(diverged.items(), key=lambda item: item[1].position)
    return {"prompt": prompt, **parted.as_dict()}


def _draft_share(results: Results, name: str, prompts: Sequence[str]) -> float | None:
    draft, verify = results.total(name, prompts, "draft_ms"), results.total(name, prompts, "verify_ms")
    return None if draft is None or verify is None else _over(draft, draft + verify)


def _quartiles(values: Sequence[float]) -> list[float] | None:
    if not values:
        return None
    half = len(values) // 2
    low, high = (values[: half + len(values) % 2], values[half:])
    return [round(median(part), 3) for part in (low, values, high)]


def _over(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)
