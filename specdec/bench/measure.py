"""The measuring itself: every runner on every prompt, interleaved, each run timed whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from specdec.bench.runners import Runner
from specdec.bench.store import Sample, Store

#: Called after each run with how many are done and how many there are.
Report = Callable[[int, int], None]
_WARM_UP = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be run. prompts: token ids by the prompt's id; seed: of every sampled run."""

    prompts: Mapping[str, Sequence[int]]
    max_tokens: int
    temperatures: Sequence[float] = (0.0,)
    repeats: int = 1
    seed: int = 0

    def schedule(self, runners: Sequence[Runner]) -> Iterator[tuple[float, int, str, Runner]]:
        """Every run once, as (temperature, repeat, prompt, runner).

        Runners take turns on each prompt, and who starts changes from prompt to prompt and from repeat to repeat, so
        that a machine that slows down slows all of them down.
        """
        for repeat in range(self.repeats):
            for temperature in self.temperatures:
                for turn, prompt in enumerate(self.prompts):
                    first = (turn + repeat) % len(runners)
                    for runner in [*runners[first:], *runners[:first]]:
                        yield temperature, repeat, prompt, runner


def measure(plan: Plan, runners: Sequence[Runner], store: Store, report: Report | None = None) -> None:
    """Run what the store does not hold yet; each runner is warmed up before its first run counts."""
    todo = list(plan.schedule(runners))
    missing = {runner.name for t, repeat, prompt, runner in todo if (prompt, runner.name, t, repeat) not in store}
    shortest = min(plan.prompts.values(), key=len)
    for runner in runners:
        if runner.name in missing:
            runner.run(shortest, min(_WARM_UP, plan.max_tokens), 0.0, plan.seed)
    for done, (temperature, repeat, prompt, runner) in enumerate(todo, 1):
        if (prompt, runner.name, temperature, repeat) not in store:
            run = runner.run(plan.prompts[prompt], plan.max_tokens, temperature, plan.seed)
            store.add(Sample(prompt, runner.name, temperature, repeat, run.seconds, run.tokens, run.counts))
        if report is not None:
            report(done, len(todo))
