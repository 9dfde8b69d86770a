"""A store's content as a safetensors file, so that an agent goes on after a restart."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specdec.errors import OptionError
from specdec.state.key import StateIdentity, StateKey
from specdec.state.segment import Rows
from specdec.state.store import Kept, StateStore

_FORMAT = "specdec-state-1"


def save(store: StateStore, path: str | Path, identity: StateIdentity, owner: str | None = None) -> int:
    """Write what `identity` wrote into the store, of one owner or of all; returns the bytes of the file.

    The file takes its place whole or not at all, and only its user may read it: it holds what prompts said.
    """
    kept = store.snapshot()
    try:
        wanted = [k for k in kept if k.key.identity == identity and owner in (None, k.key.owner)]
        tensors, branches = _described(wanted)
        header = {"format": _FORMAT, "model": identity.model, "dtype": identity.dtype, "adapter": identity.adapter}
        return _write(Path(path), tensors, {**header, "branches": json.dumps(branches)})
    finally:
        for item in kept:
            item.branch.release()


def load(store: StateStore, path: str | Path, identity: StateIdentity, like: Rows) -> int:
    """Add a saved file to the store; returns the tokens added, fewer than saved where the store has no room.

    like: rows of no token, whose other sizes and dtype those of the file must have. Raises OptionError, before
    anything is added, if the file is no state, is broken, or was written by another model, dtype or adapter.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
            _check_header(path, header, identity)
            names = set(file.keys())
            branches = _parsed(path, header, names)
            rows = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise OptionError(f"{path} was to be read as saved state; it cannot be: {error}. Save it again.") from error
    _check_rows(path, branches, rows, like)
    return sum(_restore(store, identity, index, branch, rows, like) for index, branch in enumerate(branches))


def _described(kept: Sequence[Kept]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Tensors by name, a shared segment once, and what each branch is made of."""
    tensors: dict[str, Tensor] = {}
    names: dict[tuple[int, int, int], int] = {}
    branches = []
    for index, item in enumerate(kept):
        pages = []
        for segment in item.branch.segments:
            place = (id(segment.block), segment.start, segment.stop)
            if place not in names:
                names[place] = len(names)
                for kind, rows in zip("kv", segment.rows, strict=True):
                    tensors[f"{kind}.{names[place]}"] = rows.clone(memory_format=torch.contiguous_format)
            pages.append(names[place])
        tensors[f"tokens.{index}"] = torch.tensor(item.tokens, dtype=torch.int64)
        branches.append({"owner": item.key.owner, "calls": item.calls, "cuts": item.cuts, "pages": pages})
    return tensors, branches


def _write(path: Path, tensors: dict[str, Tensor], header: dict[str, str]) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    part = Path(name)
    try:
        save_file(tensors, part, header)
        part.chmod(0o600)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        size = part.stat().st_size
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return size


def _check_header(path: str | Path, header: dict[str, str], identity: StateIdentity) -> None:
    if header.get("format") != _FORMAT:
        raise OptionError(
            f"{path} was to be read as saved state of format {_FORMAT!r}; its format is {header.get('format')!r}. "
            "Name a file that this version saved."
        )
    for field in ("model", "dtype", "adapter"):
        found, wanted = header.get(field), getattr(identity, field)
        if found != wanted:
            raise OptionError(
                f"{path} holds state of {field} {found!r}; this engine's {field} is {wanted!r}, and rows of one are "
                "wrong for the other. Load it into the engine that saved it, or start without it."
            )


def _parsed(path: str | Path, header: dict[str, str], names: set[str]) -> list[dict[str, Any]]:
    """The branches of the header, each checked to have its parts in the file."""
    try:
        branches = json.loads(header["branches"])
        for index, branch in enumerate(branches):
            needed = {f"tokens.{index}", *(f"{kind}.{page}" for page in branch["pages"] for kind in "kv")}
            sound = isinstance(branch["owner"], str) and all(isinstance(call, str) for call in branch["calls"])
            sound = sound and len(branch["pages"]) > 0
            if not sound or not needed <= names or not all(isinstance(cut, int) for cut in branch["cuts"]):
                raise ValueError(f"branch {index} is incomplete")
    except (KeyError, TypeError, ValueError) as error:
        raise OptionError(f"{path} holds a broken table of branches ({error}). Save it again.") from error
    return list(branches)


def _check_rows(path: str | Path, branches: list[dict[str, Any]], rows: dict[str, Tensor], like: Rows) -> None:
    """Every page has the sizes and dtype of this model's rows, and pages add up to their branch's tokens."""
    for index, branch in enumerate(branches):
        count = 0
        for page in branch["pages"]:
            k, v = rows[f"k.{page}"], rows[f"v.{page}"]
            for found, wanted in ((k, like[0]), (v, like[1])):
                fits = found.ndim == 4 and found.dtype == wanted.dtype and found.shape[2] == k.shape[2]
                if not fits or (*found.shape[:2], found.shape[3]) != (*wanted.shape[:2], wanted.shape[3]):
                    raise OptionError(
                        f"{path} holds rows {list(found.shape)} {found.dtype}; this model's are "
                        f"{list(wanted.shape)} {wanted.dtype} with any third size. Save it again."
                    )
            count += k.shape[2]
        tokens = rows[f"tokens.{index}"]
        if tokens.dtype != torch.int64 or list(tokens.shape) != [count]:
            raise OptionError(
                f"{path} names {list(tokens.shape)} tokens for {count} rows of branch {index}. Save it again."
            )


def _restore(
    store: StateStore,
    identity: StateIdentity,
    index: int,
    branch: dict[str, Any],
    rows: dict[str, Tensor],
    like: Rows,
) -> int:
    k, v = (torch.cat([rows[f"{kind}.{page}"] for page in branch["pages"]], 2).to(like[0].device) for kind in "kv")
    tokens: list[int] = rows[f"tokens.{index}"].tolist()

    def read(start: int, stop: int) -> Rows:
        return k[:, :, start:stop].clone(), v[:, :, start:stop].clone()

    key, size = StateKey(branch["owner"], identity), (k.nbytes + v.nbytes) // len(tokens)
    added = store.insert(key, tokens, read, size, call=next(iter(branch["calls"]), None), marks=branch["cuts"])
    for call in branch["calls"][1:]:
        store.insert(key, tokens, read, size, call=call)
    return added
