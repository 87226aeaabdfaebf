"""The errors seer raises: the user's fault, a schedule's, or our own.

Every message says what was found, what was expected, and where (node, shapes).
"""

from __future__ import annotations


class SeerError(Exception):
    """Base of every error that seer raises on purpose."""


class UserError(SeerError, ValueError):
    """The caller passed something that cannot work (bad argument, bad file, bad option)."""


class GraphError(UserError):
    """A graph node cannot be built: names the node, its shapes and what would be right."""


class TargetError(UserError):
    """A target is unknown, or this machine lacks what it needs."""


class ScheduleError(SeerError):
    """A sketch or a row of parameters is not legal for its ComputeDAG."""


class VerifyError(SeerError):
    """An IR broke its own rules: a fault of seer, not of the user."""


class BuildError(SeerError):
    """Code generation or loading of machine code failed."""


class MeasureError(SeerError):
    """A candidate could not be measured (crash, time-out, wrong result)."""


class RecordError(SeerError):
    """A records database cannot be read or does not fit this version."""
