"""The whole report as one JSON document."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.bench.job import Job
from specdec.bench.machine import command, machine, versions
from specdec.bench.measure import Plan
from specdec.bench.report import rows
from specdec.bench.results import Results
from specdec.bench.store import Sample, Store


def document(job: Job, plan: Plan, store: Store, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Command, versions, machine, settings, rows and single samples; numbers carry their units in their names."""
    runs = []
    for temperature in plan.temperatures:
        results = Results(store.samples.values(), temperature, job.compare(plan.seed))
        runs += rows(results, job.runners, job.categories)
    return {
        "command": command(),
        "versions": versions(),
        "machine": machine(),
        "settings": dict(settings),
        "transformers_plain_tokens_per_s": {kind: round(rate, 2) for kind, rate in job.plain_rates.items()},
        "prompts": {name: len(ids) for name, ids in job.categories.items()},
        "prompts_skipped": job.skipped,
        "samples_resumed": store.resumed,
        "runs": runs,
        "samples": [_line(sample) for sample in store.samples.values()],
    }


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a document by one rename, so that what is there is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def digest(texts: Sequence[str]) -> str:
    """A short name for a list of texts."""
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()[:16]


def _line(sample: Sample) -> dict[str, Any]:
    counts = {name: round(value, 3) for name, value in sample.counts.items()}
    return {
        "prompt": sample.prompt,
        "drafter": sample.drafter,
        "temperature": sample.temperature,
        "repeat": sample.repeat,
        "seconds": round(sample.seconds, 4),
        "tokens": len(sample.tokens),
        **counts,
    }
