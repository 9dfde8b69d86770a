"""A picture of a report: how many times faster than plain decoding, by category and drafter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.errors import missing_extra

_FIELD = "speedup_vs_none"


def plot(runs: Sequence[Mapping[str, Any]], path: Path, *, title: str) -> None:
    """Write grouped bars to `path`, one panel for each temperature, with a line at 1. Needs matplotlib."""
    pyplot = _pyplot()
    temperatures = sorted({run["temperature"] for run in runs})
    wide = max(6.0, 1.1 * len({run["category"] for run in runs}))
    figure, panels = pyplot.subplots(
        len(temperatures), 1, figsize=(wide, 3.2 * len(temperatures)), squeeze=False, layout="constrained"
    )
    for panel, temperature in zip(panels[:, 0], temperatures, strict=True):
        _bars(panel, [run for run in runs if run["temperature"] == temperature])
        panel.set_title(f"{title}, temperature {temperature:g}", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _bars(panel: Any, runs: Sequence[Mapping[str, Any]]) -> None:
    categories = list(dict.fromkeys(run["category"] for run in runs))
    drafters = [name for name in dict.fromkeys(run["drafter"] for run in runs) if name != "none"]
    ratios = {(run["drafter"], run["category"]): run[_FIELD] for run in runs}
    width = 0.8 / max(1, len(drafters))
    for i, drafter in enumerate(drafters):
        heights = [ratios.get((drafter, category)) or 0.0 for category in categories]
        left = [at - 0.4 + (i + 0.5) * width for at in range(len(categories))]
        bars = panel.bar(left, heights, width, label=drafter)
        panel.bar_label(bars, [f"{h:.2f}" if h else "" for h in heights], fontsize=6)
    panel.axhline(1.0, color="black", linewidth=0.8)
    panel.set_xticks(range(len(categories)), categories, rotation=30, ha="right", fontsize=8)
    panel.set_ylabel("times plain decoding", fontsize=8)
    if drafters:
        panel.legend(fontsize=7)


def _pyplot() -> Any:
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise missing_extra("matplotlib", "bench", "a plot") from error
    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot
