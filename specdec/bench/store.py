"""Samples on disk as they come, so that an interrupted benchmark goes on where it was."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

Key = tuple[str, str, float, int]


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed generation of one prompt."""

    prompt: str
    drafter: str
    temperature: float
    repeat: int
    seconds: float
    tokens: list[int]
    counts: Mapping[str, float]

    @property
    def key(self) -> Key:
        """What tells it from the other samples of a benchmark."""
        return self.prompt, self.drafter, self.temperature, self.repeat


class Store:
    """Samples by key; with a path, each is written beside the report-to-be when it is added.

    The file's first line holds the settings. A file of other settings is set aside, not continued. A last line that
    was cut off is dropped.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self._path, self._settings = path, json.loads(json.dumps(settings))
        self.samples: dict[Key, Sample] = {}
        if path is not None:
            self._read(path)
        self.resumed = len(self.samples)

    def __contains__(self, key: object) -> bool:
        return key in self.samples

    def add(self, sample: Sample) -> None:
        """Keep a sample; it is on disk when this returns."""
        self.samples[sample.key] = sample
        if self._path is not None:
            self._write(self._path, asdict(sample), "a")

    def discard(self) -> None:
        """Remove the file, once its report is written."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _read(self, path: Path) -> None:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        entries = [entry for line in lines if (entry := _parsed(line)) is not None]
        if not entries or entries[0] != {"settings": self._settings}:
            if entries:
                path.replace(path.with_name(path.name + ".old"))
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write(path, {"settings": self._settings}, "w")
            return
        found = [Sample(**entry) for entry in entries[1:]]
        self.samples = {sample.key: sample for sample in found}
        if len(entries) < len(lines):  # a line was cut off: write the whole ones anew
            path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")

    @staticmethod
    def _write(path: Path, entry: Mapping[str, Any], mode: str) -> None:
        with path.open(mode, encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())


def partial_path(out: Path) -> Path:
    """Where the samples of a report at `out` are kept until it is written."""
    return out.with_name(out.name + ".partial.jsonl")


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError:
        return None
    return entry if isinstance(entry, dict) else None
