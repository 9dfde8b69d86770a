"""The store: prefix trees of many owners under one byte budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from threading import RLock

from specdec.errors import OptionError
from specdec.state.key import StateKey
from specdec.state.node import Node, descend
from specdec.state.segment import Branch, Ledger, Rows, Segment

#: Copies rows `start` to `stop` of what was prefilled.
ReadRows = Callable[[int, int], Rows]
_PAGE = 64


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """One branch: its tokens, its rows (held), where its nodes end, and the call kinds it is the newest branch of."""

    key: StateKey
    tokens: tuple[int, ...]
    branch: Branch
    cuts: tuple[int, ...]
    calls: tuple[str, ...]


class StateStore:
    """Keys and values of prompts, found again by their exact first tokens. Safe to call from several threads.

    max_bytes     bytes of keys and values held at most, at any moment; bookkeeping is not counted
    page_tokens   tokens of the largest block, and so of what is evicted at a time

    Rows are kept by key, so nothing is found under another owner, model, dtype or adapter. When room is needed, the
    leaf that was used longest ago is shortened from its end; the newest branch of each call kind of a key is touched
    only when nothing else is left. Rows that are held by a `Branch` count until they are released.
    """

    def __init__(self, max_bytes: int, *, page_tokens: int = _PAGE) -> None:
        for name, value in (("max_bytes", max_bytes), ("page_tokens", page_tokens)):
            if type(value) is not int or value < 1:
                raise OptionError(f"{name} was set to {value!r}; it is a whole number of at least 1. Raise it.")
        self.max_bytes, self.page_tokens = max_bytes, page_tokens
        self._ledger = Ledger()
        self._trees: dict[StateKey, Node] = {}
        self._newest: dict[tuple[StateKey, str], Node] = {}
        self._clock = 0
        self._lock = RLock()

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values held now."""
        return self._ledger.nbytes

    @property
    def tokens(self) -> int:
        """Tokens whose rows are held, a shared prefix counted once."""
        with self._lock:
            return sum(len(node.tokens) for root in self._trees.values() for node in root.walk())

    @property
    def keys(self) -> list[StateKey]:
        """The keys under which something is held."""
        with self._lock:
            return list(self._trees)

    def find(self, key: StateKey, tokens: Sequence[int]) -> Branch:
        """The rows of the longest known prefix of `tokens`, for reading: nothing counts as used by a request."""
        with self._lock:
            return Branch([segment for node in self._visit(key, tokens) for segment in node.segments])

    def claim(self, key: StateKey, tokens: Sequence[int]) -> tuple[Branch, int]:
        """As `find`, for a request; also how many of the tokens a gap had prefilled and no request had used yet."""
        with self._lock:
            path = self._visit(key, tokens)
            ahead = sum(len(node.tokens) for node in path if node.ahead)
            for node in path:
                node.ahead = False
            return Branch([segment for node in path for segment in node.segments]), ahead

    def insert(
        self,
        key: StateKey,
        tokens: Sequence[int],
        read: ReadRows,
        row_bytes: int,
        *,
        call: str | None = "",
        marks: Sequence[int] = (),
        ahead: bool = False,
    ) -> int:
        """Keep the rows of `tokens` that are not known yet; how many tokens were added, fewer if room ran out.

        read(start, stop) copies rows; row_bytes: bytes of one. call: the kind of request, whose newest branch is kept
        longest; None notes none. marks: token counts at which nodes end. ahead: written in a gap. Evicts what it must.
        """
        ids = tuple(tokens)
        with self._lock:
            cuts = sorted(mark for mark in set(marks) if 0 < mark < len(ids))
            for mark in cuts:
                descend(self._trees.get(key, Node()), ids[:mark])
            path = self._visit(key, ids)
            known = done = sum(len(node.tokens) for node in path)
            keep = set(map(id, path))
            root = self._trees.setdefault(key, Node())
            node = path[-1] if path else root
            for start, stop in pairwise([known, *(cut for cut in cuts if cut > known), len(ids)]):
                segments = self._pages(start, stop, read, row_bytes, keep)
                count = sum(segment.tokens for segment in segments)
                if count:
                    child = Node(ids[start : start + count], segments, node, used=self._clock, ahead=ahead)
                    node.children[child.tokens[0]] = node = child
                    keep.add(id(child))
                    done += count
                if count < stop - start:
                    break
            self._trees[key] = root  # eviction may have emptied the tree, and dropped it, before rows came in
            if not root.children:
                del self._trees[key]
            elif node is not root and call is not None:
                self._newest[key, call] = node
            return done - known

    def forget(self, owner: str) -> None:
        """Drop all that is kept under that owner, as `StateKey` names it, for every model."""
        with self._lock:
            for key in [key for key in self._trees if key.owner == owner]:
                for node in self._trees.pop(key).walk():
                    for segment in node.segments:
                        segment.drop()
                for place in [place for place in self._newest if place[0] == key]:
                    del self._newest[place]

    def snapshot(self) -> list[Kept]:
        """All branches, least recently used first, their rows held: release each. For saving."""
        with self._lock:
            calls: dict[int, list[str]] = {}
            for (_, call), node in self._newest.items():
                calls.setdefault(id(node), []).append(call)
            ends = [
                (node.used, key, node)
                for key, root in self._trees.items()
                for node in root.walk()
                if node is not root and (not node.children or id(node) in calls)
            ]
            ends.sort(key=lambda end: end[0])
            return [_kept(key, node, calls.get(id(node), [])) for _, key, node in ends]

    def _visit(self, key: StateKey, tokens: Sequence[int]) -> list[Node]:
        """The nodes of the longest known prefix, marked as used now."""
        self._clock += 1
        root = self._trees.get(key)
        path = [] if root is None else descend(root, tuple(tokens))
        for node in path:
            node.used = self._clock
        return path

    def _pages(self, start: int, stop: int, read: ReadRows, row_bytes: int, keep: set[int]) -> list[Segment]:
        """Copies of rows `start` to `stop`, page by page, as far as room can be made."""
        segments: list[Segment] = []
        try:
            for at in range(start, stop, self.page_tokens):
                end = min(at + self.page_tokens, stop)
                if not self._make_room((end - at) * row_bytes, keep):
                    break
                segments.append(Segment.whole(read(at, end), self._ledger))
        except BaseException:
            for segment in segments:
                segment.drop()
            raise
        return segments

    def _make_room(self, size: int, keep: set[int]) -> bool:
        """Evict until `size` more bytes fit; false if what may be evicted is not enough."""
        if size > self.max_bytes:
            return False
        while self._ledger.nbytes + size > self.max_bytes:
            guarded = {id(node) for node in self._newest.values()}
            leaves = [
                (id(node) in guarded, node.used, key, node)
                for key, root in self._trees.items()
                for node in root.walk()
                if node is not root and not node.children and id(node) not in keep
            ]
            if not leaves:
                return False
            _, _, key, node = min(leaves, key=lambda leaf: leaf[:2])
            self._evict(key, node)
        return True

    def _evict(self, key: StateKey, leaf: Node) -> None:
        """Shorten a leaf by its last block; an empty one leaves the tree, and an empty tree the store."""
        parent = leaf.parent
        leaf.trim()
        if leaf.tokens or parent is None:
            return
        for place in [place for place, node in self._newest.items() if node is leaf]:
            if parent.parent is None:
                del self._newest[place]
            else:
                self._newest[place] = parent
        if parent.parent is None and not parent.children and parent is self._trees.get(key):
            del self._trees[key]


def _kept(key: StateKey, node: Node, calls: Sequence[str]) -> Kept:
    path = node.ancestry()
    tokens = tuple(token for part in path for token in part.tokens)
    branch = Branch([segment for part in path for segment in part.segments])
    return Kept(key, tokens, branch, tuple(accumulate(len(part.tokens) for part in path)), tuple(calls))
