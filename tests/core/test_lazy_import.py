"""Importing the package costs neither torch nor time."""

from __future__ import annotations

import subprocess
import sys

import pytest

import specdec


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip()


def test_importing_the_package_imports_no_heavy_library() -> None:
    heavy = "['torch', 'numpy', 'transformers', 'safetensors', 'tokenizers', 'typer', 'rich']"
    assert _python(f"import sys, specdec; print([m for m in {heavy} if m in sys.modules])") == "[]"


def test_importing_the_package_takes_little_processor_time() -> None:
    """Processor time of the import alone: a busy machine does not lengthen it. It takes a few milliseconds."""
    code = "import time; t = time.process_time(); import specdec; print(time.process_time() - t)"
    assert min(float(_python(code)) for _ in range(2)) < 0.3


@pytest.mark.parametrize("name", ["registry", "config", "errors", "params"])
def test_modules_that_need_no_tensors_import_no_torch(name: str) -> None:
    assert _python(f"import sys, specdec.{name}; print('torch' in sys.modules)") == "False"


def test_every_public_name_loads() -> None:
    assert [name for name in specdec.__all__ if getattr(specdec, name, None) is None] == []


def test_dir_lists_the_public_names() -> None:
    assert dir(specdec) == specdec.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Drafterr'"):
        _ = specdec.Drafterr
