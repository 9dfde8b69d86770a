"""Prompts from files as they come: Spec-Bench and MT-Bench (first turn), HumanEval, or lines with a "prompt"."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from specdec.errors import OptionError, nearest

_PLAIN = "all prompts"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One text to be continued; `id` names it within its file."""

    id: str
    category: str
    text: str


def read_prompts(path: Path, *, limit: int | None = None, categories: Sequence[str] = ()) -> list[Prompt]:
    """The prompts of a JSONL file, gzipped or not: `limit` of each category at most, of these categories only.

    A line holds "prompt" (text) or "turns" (a list, whose first entry counts), and perhaps "category" and an id.
    Raises OptionError for a line that does not, with file, line and reason.
    """
    found = list(_all(path))
    known = sorted({prompt.category for prompt in found})
    for name in categories:
        if name not in known:
            raise OptionError(
                f"category {name!r} was asked for; {path} has {', '.join(known) or 'none'}.{nearest(name, known)}"
            )
    kept: Counter[str] = Counter()
    chosen = []
    for prompt in found:
        wanted = not categories or prompt.category in categories
        if wanted and (limit is None or kept[prompt.category] < limit):
            kept[prompt.category] += 1
            chosen.append(prompt)
    if not chosen:
        raise OptionError(f"{path} holds no prompt. Give a file with one JSON object a line.")
    return chosen


def _all(path: Path) -> Iterator[Prompt]:
    seen: set[str] = set()
    try:
        with _open(path) as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                prompt = _prompt(line, number, path)
                if prompt.id in seen:
                    raise _broken(path, number, f"the id {prompt.id!r} was used before")
                seen.add(prompt.id)
                yield prompt
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise OptionError(f"prompts were to be read from {path}: {error}. Give a readable JSONL file.") from error


def _open(path: Path) -> IO[str]:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def _prompt(line: str, number: int, path: Path) -> Prompt:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise _broken(path, number, f"it is not JSON ({error})") from error
    if not isinstance(entry, dict):
        raise _broken(path, number, f"it is a {type(entry).__name__}, not an object")
    text = _text(entry, number, path)
    category = entry.get("category", "humaneval" if "entry_point" in entry else _PLAIN)
    if not isinstance(category, str) or not category:
        raise _broken(path, number, f"its category is {category!r}, not a name")
    name = next((entry[key] for key in ("question_id", "task_id", "id") if key in entry), number)
    return Prompt(str(name), category, text)


def _text(entry: dict[str, Any], number: int, path: Path) -> str:
    if "prompt" in entry:
        text = entry["prompt"]
    elif isinstance(entry.get("turns"), list) and entry["turns"]:
        text = entry["turns"][0]
    else:
        raise _broken(path, number, 'it has neither "prompt" nor a list of "turns"')
    if not isinstance(text, str) or not text.strip():
        raise _broken(path, number, f"its prompt is {text!r}, not text")
    return text


def _broken(path: Path, number: int, reason: str) -> OptionError:
    return OptionError(f"{path}, line {number}: {reason}. Correct the line or remove it.")
