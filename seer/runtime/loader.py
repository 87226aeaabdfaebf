"""Object files become callable code in this process."""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Sequence
from functools import lru_cache

import llvmlite.binding as llvm

from seer.errors import BuildError
from seer.runtime import openmp


class Engine:
    """Loaded machine code; it is freed with this object."""

    def __init__(self, engine: llvm.ExecutionEngine) -> None:
        self._engine = engine

    def address(self, name: str) -> int:
        """The address of a function.

        Raises:
            BuildError: if there is none of that name.
        """
        address: int = self._engine.get_function_address(name)
        if address == 0:
            raise BuildError(f"the loaded code has no function {name!r}")
        return address


def load_objects(objects: Sequence[bytes]) -> Engine:
    """Link object files with each other and with the C and OpenMP libraries.

    Raises:
        BuildError: if a symbol is missing or the objects are not for this machine.
    """
    _initialise()
    openmp.install()
    try:
        module = llvm.parse_assembly("")
        engine = llvm.create_mcjit_compiler(module, llvm.Target.from_default_triple().create_target_machine())
        for code in objects:
            engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
    except RuntimeError as e:
        raise BuildError(f"cannot load the code: {e}") from e
    return Engine(engine)


@lru_cache(maxsize=1)
def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    libm = ctypes.util.find_library("m")
    if libm:
        llvm.load_library_permanently(libm)
