"""This CPU, by LLVM."""

from __future__ import annotations

from seer.backends.base import Backend
from seer.codegen.build import build
from seer.errors import TargetError
from seer.runtime.measure import LocalMeasurer
from seer.runtime.model import CompiledModel
from seer.runtime.target import Target


def _resolve(target: Target) -> Target:
    if not target.is_host:
        raise TargetError(f"target {target} is not this machine ({Target.parse(None)})")
    return target


HOST = Backend(_resolve, build, LocalMeasurer, CompiledModel)
