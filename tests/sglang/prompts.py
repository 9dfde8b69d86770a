"""Prompts for a model of random weights: any text will do, and some of it repeats."""

TEXTS = [
    f"{start} {number}"
    for number in range(4)
    for start in (
        "def f(x):\n    return",
        "import os\nfor i in range(10):\n    print(i)\nfor i in range",
        "class A(object):\n    def __init__(self):",
        "the the the the",
        "a b c a b c a b",
        "# comment\nif x == 1:",
    )
]
