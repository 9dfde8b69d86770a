"""The demo's prompts: two where the answer repeats the prompt, and two where it hardly does."""

from __future__ import annotations

_BRIDGE = """
The bridge over the mill stream was {closed} in spring because two {beams} had rotted. The village could not pay for
steel, so the carpenters proposed oak from the old barn, which the owner gave away for nothing. Work took three weeks
longer than {planned}, since the stream rose twice and washed the scaffold away.
"""

#: Task and prompt.
PROMPTS = {
    "correct": "Correct the spelling mistakes in this text and write the whole text again:\n"
    + _BRIDGE.format(closed="closd", beams="beems", planned="planed"),
    "summary": "Sum up this note in two sentences.\n"
    + _BRIDGE.format(closed="closed", beams="beams", planned="planned"),
    "letter": "Write a short letter that asks a neighbour to lend a ladder.",
    "story": "Tell a short story about a lighthouse keeper who finds a letter in a bottle.",
}
