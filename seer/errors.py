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


class EmulationError(SeerError):
    """Emulated CUDA code did what it must not.

    Attributes:
        fault: what kind: "race", "out of bounds", "unwritten read", "barrier divergence",
            "warp divergence", "misaligned access", "constant written", "overflow", "crash",
            "timeout", and a few rarer ones.
        kernel: the name of the kernel.
        block: blockIdx of the thread at fault, if one is.
        thread: its threadIdx.
        array: the array concerned.
        line: in the source, from 1.
    """

    def __init__(
        self,
        message: str,
        *,
        fault: str,
        kernel: str,
        block: tuple[int, ...] | None = None,
        thread: tuple[int, ...] | None = None,
        array: str | None = None,
        line: int | None = None,
    ) -> None:
        super().__init__(message)
        self.fault = fault
        self.kernel = kernel
        self.block = block
        self.thread = thread
        self.array = array
        self.line = line


def shown(value: object) -> str:
    """A value for a message, shortened if it is long."""
    if isinstance(value, int) and value.bit_length() > 100:
        return f"<{value.bit_length()} bits>"
    try:
        text = repr(value)
    except ValueError:  # Python does not write numbers of thousands of digits
        text = f"<a {type(value).__name__}>"
    return text if len(text) <= 100 else f"{text[:97]}..."
