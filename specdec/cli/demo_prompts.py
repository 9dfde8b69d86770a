"""The demo's prompts: two where the answer repeats the prompt, and two where it hardly does."""

from __future__ import annotations

#: Task and prompt.
PROMPTS = {
    "edit code": """Rename the variable `total` to `amount` in this function and show the whole function again.

def invoice(items, tax):
    total = 0
    for item in items:
        total += item.price * item.count
    if tax:
        total += total * tax
    return round(total, 2)
""",
    "quote rules": """Here are the rules of our workshop. Write all of them down again, one on each line, with numbers.

Wear glasses at the lathe.
Put every tool back on its hook before you leave.
Sweep the floor under the saw in the evening.
Never leave the kiln alone while it heats up.
Ask Ines for the key of the paint cupboard.
""",
    "summary": """Sum up this note in two sentences.

The bridge over the mill stream was closed in spring because two beams had rotted. The village could not pay for steel,
so the carpenters proposed oak from the old barn, which the owner gave away for nothing. Work took three weeks longer
than planned, since the stream rose twice and washed the scaffold away. The bridge is open again to walkers and
bicycles; carts have to use the ford until the new railings are fixed.
""",
    "story": "Tell a short story about a lighthouse keeper who finds a letter in a bottle.",
}
