"""The options that commands share, and how their values are read."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from specdec.errors import OptionError

_SAMPLING, _DECODING = "Sampling", "Decoding"

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Drafter = Annotated[
    str | None,
    typer.Option(
        "--drafter", "-d", help='A drafter, or wrappers and one; "ngram" if left out.', rich_help_panel=_DECODING
    ),
]
Verifier = Annotated[str, typer.Option(help="The rule that keeps drafts.", rich_help_panel=_DECODING)]
Budget = Annotated[
    int | None, typer.Option(help="Nodes a draft may have at most, 1 for none.", rich_help_panel=_DECODING)
]
Policy = Annotated[str, typer.Option(help='"cost" drafts where it pays, "fixed" always.', rich_help_panel=_DECODING)]
Dtype = Annotated[
    str | None, typer.Option(help="fp32, bf16 or fp16; the model's own if left out.", rich_help_panel=_DECODING)
]
Device = Annotated[str, typer.Option(help="Where the model runs.", rich_help_panel=_DECODING)]
DraftModel = Annotated[
    str | None,
    typer.Option(
        help="A smaller model of the same vocabulary, for the drafter draft_model.", rich_help_panel=_DECODING
    ),
]
Extra = Annotated[
    list[str] | None,
    typer.Option("--option", help="An option of one part, NAME.KEY=VALUE; may be repeated.", rich_help_panel=_DECODING),
]
Temperature = Annotated[float, typer.Option(help="0 takes the likeliest token.", rich_help_panel=_SAMPLING)]
TopK = Annotated[int, typer.Option(help="Draw among so many; 0 is off.", rich_help_panel=_SAMPLING)]
TopP = Annotated[float, typer.Option(help="Draw among this much probability; 1 is off.", rich_help_panel=_SAMPLING)]
MinP = Annotated[
    float, typer.Option(help="Leave out what is less likely than this share of the best.", rich_help_panel=_SAMPLING)
]
Seed = Annotated[int | None, typer.Option(help="Fixes the output at any temperature.", rich_help_panel=_SAMPLING)]
MaxTokens = Annotated[int, typer.Option("--max-tokens", help="New tokens at most.", rich_help_panel=_SAMPLING)]
MinTokens = Annotated[int, typer.Option(help="New tokens before an end is allowed.", rich_help_panel=_SAMPLING)]
Stop = Annotated[
    list[str] | None, typer.Option(help="Text that ends the output; may be repeated.", rich_help_panel=_SAMPLING)
]
Regex = Annotated[str | None, typer.Option(help="The output matches this.", rich_help_panel=_SAMPLING)]
Schema = Annotated[
    str | None, typer.Option(help="The output is JSON of this schema (text, or @FILE).", rich_help_panel=_SAMPLING)
]
Logprobs = Annotated[
    int | None, typer.Option(help="Report log-probabilities, and so many alternatives.", rich_help_panel=_SAMPLING)
]
Copies = Annotated[int, typer.Option("--n", help="Completions of each prompt.", rich_help_panel=_SAMPLING)]
Chat = Annotated[
    bool | None,
    typer.Option("--chat/--no-chat", help="Use the chat template; default: where the tokenizer has one."),
]


def parts(expression: str) -> list[str]:
    """The names in "reuse:ngram"."""
    return [part.strip() for part in expression.split(":")]


def listed(text: str) -> list[str]:
    """The items of a comma-separated list."""
    return [item.strip() for item in text.split(",") if item.strip()]


def numbers(text: str, name: str) -> list[float]:
    """The numbers of a comma-separated list."""
    try:
        found = [float(item) for item in listed(text)]
    except ValueError as error:
        raise OptionError(f"{name} takes numbers with commas between them; found {text!r}.") from error
    if not found:
        raise OptionError(f"{name} takes at least one number; found {text!r}.")
    return found


def part_options(
    given: Sequence[str] | None, drafters: Iterable[str], verifier: str
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """What --option said: keyword arguments of the drafters, and of the rule, by name."""
    known_drafters = {name for drafter in drafters for name in parts(drafter)}
    for_drafters: dict[str, dict[str, Any]] = {}
    for_verifier: dict[str, dict[str, Any]] = {}
    for item in given or ():
        path, equals, value = item.partition("=")
        name, dot, key = path.partition(".")
        if not equals or not dot or not key.strip():
            raise OptionError(f"--option is written NAME.KEY=VALUE, as in ngram.max_match=8; found {item!r}.")
        name = name.strip()
        if name not in known_drafters and name not in parts(verifier):
            asked = sorted(known_drafters | set(parts(verifier)))
            raise OptionError(f"--option {item!r} names {name!r}; the parts in use are {', '.join(asked)}.")
        goal = for_drafters if name in known_drafters else for_verifier
        goal.setdefault(name, {})[key.strip()] = _value(value)
    return for_drafters, for_verifier


def prompt_texts(given: Sequence[str]) -> list[str]:
    """The prompts, "-" being replaced by what stands on stdin."""
    texts = [sys.stdin.read() if text == "-" else text for text in given]
    for text in texts:
        if not text.strip():
            raise OptionError("a prompt is empty. Give some text.")
    return texts


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
