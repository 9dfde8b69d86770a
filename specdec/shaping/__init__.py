"""What stands between the target's logits and the rule: penalties, biases, masks and grammars, node by node.

Each constraint sees the drafted path of a node as if those tokens had been emitted, so a drafted run is judged as
plain decoding would judge it one token at a time.
"""

from specdec.shaping.constraint import Constraint, Nodes
from specdec.shaping.rows import RowShaper

__all__ = ["Constraint", "Nodes", "RowShaper"]
