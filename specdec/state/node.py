"""Nodes of a prefix tree over token ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from specdec.state.segment import Segment


@dataclass(slots=True, eq=False)
class Node:
    """Tokens that follow those of `parent`, and their rows. Siblings begin with different tokens; the root has none.

    used: when a prompt last went through it, in the store's own count. ahead: written in a gap between requests, and
    no request has used it yet.
    """

    tokens: tuple[int, ...] = ()
    segments: list[Segment] = field(default_factory=list)
    parent: Node | None = None
    children: dict[int, Node] = field(default_factory=dict)
    used: int = 0
    ahead: bool = False

    def split(self, at: int) -> Node:
        """Move the first `at` tokens into a new parent, which is returned; this node keeps the rest and its children.

        Rows are shared, not copied.
        """
        upper = Node(self.tokens[:at], parent=self.parent, used=self.used, ahead=self.ahead)
        lower: list[Segment] = []
        left = at
        for segment in self.segments:
            head = min(max(left, 0), segment.tokens)
            if head:
                upper.segments.append(segment.part(0, head))
            if head < segment.tokens:
                lower.append(segment.part(head, segment.tokens))
            segment.drop()
            left -= segment.tokens
        if self.parent is not None:
            self.parent.children[self.tokens[0]] = upper
        self.tokens, self.segments, self.parent = self.tokens[at:], lower, upper
        upper.children[self.tokens[0]] = self
        return upper

    def trim(self) -> None:
        """Drop the last segment and its tokens; a node without tokens leaves the tree. Only for leaves."""
        segment = self.segments.pop()
        first, self.tokens = self.tokens[0], self.tokens[: len(self.tokens) - segment.tokens]
        segment.drop()
        if not self.tokens and self.parent is not None:
            del self.parent.children[first]

    def walk(self) -> Iterator[Node]:
        """This node and all below it, parents first."""
        todo = [self]
        while todo:
            node = todo.pop()
            yield node
            todo.extend(node.children.values())

    def ancestry(self) -> list[Node]:
        """The nodes from the root's child down to this one."""
        path: list[Node] = []
        node: Node = self
        while node.parent is not None:
            path.append(node)
            node = node.parent
        return path[::-1]


def descend(root: Node, tokens: Sequence[int]) -> list[Node]:
    """The nodes that `tokens` goes through, as far as the tree knows them; the last one is split where they end."""
    path: list[Node] = []
    node, done = root, 0
    while done < len(tokens) and (child := node.children.get(tokens[done])) is not None:
        common = shared(child.tokens, tokens[done : done + len(child.tokens)])
        if common < len(child.tokens):
            path.append(child.split(common))
            break
        path.append(child)
        node, done = child, done + common
    return path


def shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    if a == b:
        return len(a)
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
