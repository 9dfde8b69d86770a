"""A test kit for people who write drafters, rules and targets: small exact targets, scripted drafters, checks."""

from specdec.testing.capture import assert_capture_safe
from specdec.testing.conformance import assert_conforms, assert_rule_conforms, assert_target_conforms
from specdec.testing.fakes import Echo, RandomTree, ScriptedDrafter, SlowDrafter, Wrong
from specdec.testing.table import TableTarget
from specdec.testing.tiny import TinyTarget

__all__ = [
    "Echo",
    "RandomTree",
    "ScriptedDrafter",
    "SlowDrafter",
    "TableTarget",
    "TinyTarget",
    "Wrong",
    "assert_capture_safe",
    "assert_conforms",
    "assert_rule_conforms",
    "assert_target_conforms",
]
