"""The check of the host: what is expected is found, and what is missing is named."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from specdec_sglang import host, sgl
from specdec_sglang.host import EXPECTED, Expected, Host

_PLUGIN = Path(host.__file__).parent


def source(item: Expected) -> str:
    """The smallest source that is as expected."""
    outer, _, inner = item.name.partition(".")
    called = f"def {inner or outer}({', '.join(('self', *item.takes))}): ..."
    if inner:
        return f"class {outer}:\n    {called}\n"
    if item.has:
        return f"class {outer}:\n" + "".join(f"    {name}: int\n" for name in item.has)
    return called + "\n"


def make(root: Path, items: tuple[Expected, ...]) -> Host:
    """An SGLang of these names alone."""
    texts: dict[str, dict[str, list[str]]] = {}
    for item in items:
        head, *body = source(item).splitlines()
        texts.setdefault(item.module, {}).setdefault(head, []).extend(body)
    for module, blocks in texts.items():
        file = root.joinpath(*module.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join("\n".join([head, *body]) + "\n" for head, body in blocks.items()))
    return Host(root)


def test_a_host_that_fits(tmp_path: Path) -> None:
    fits = make(tmp_path, EXPECTED)
    assert fits.differences() == []
    assert fits.refusal() is None


@pytest.mark.parametrize("item", EXPECTED, ids=lambda item: item.name)
def test_a_name_that_is_gone(tmp_path: Path, item: Expected) -> None:
    left = tuple(other for other in EXPECTED if other != item)
    found = make(tmp_path, left).differences()
    assert len(found) == 1
    assert item.module in found[0]
    assert item.name in found[0] or "is not there" in found[0]


def test_a_parameter_or_a_field_that_is_gone(tmp_path: Path) -> None:
    text = "def f(a): ...\nclass C:\n    x: int\n    def __init__(self): self.y = 1\n"
    tree = ast.parse(text)
    assert list(host._compare(Expected("m", "f", ("a",)), tree)) == []
    assert list(host._compare(Expected("m", "f", ("b",)), tree)) == ["sglang.m.f takes no b (it takes a)"]
    assert list(host._compare(Expected("m", "C", has=("x", "y", "z")), tree)) == ["sglang.m.C has no z"]


def test_a_refusal_says_what_to_do(tmp_path: Path) -> None:
    gone = next(item for item in EXPECTED if item.name == "CustomSpecAlgo.handle_server_args")
    refusal = make(tmp_path, tuple(item for item in EXPECTED if item != gone)).refusal()
    assert refusal is not None
    assert "Known to work: 0.5.23" in refusal
    assert "sglang.srt.speculative.spec_registry has no CustomSpecAlgo.handle_server_args" in refusal


def test_every_name_is_expected() -> None:
    """What `sgl` imports stands in the table, and nothing else imports SGLang."""
    table = {(item.module, item.name.partition(".")[0]) for item in EXPECTED}
    assert {(module, name) for name, module in sgl.NAMES.items()} <= table
    for file in _PLUGIN.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "sglang" for name in names), file.name


def test_every_name_that_is_used_is_imported() -> None:
    used = set()
    for file in _PLUGIN.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sgl":
                used.add(node.attr)
    assert used == set(sgl.NAMES)
