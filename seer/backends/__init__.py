"""What a kind of target brings: how its kernels are built, measured and run.

The driver's way from a model to a result is the same for all; `BACKENDS` has what differs. Another
kind of target registers a Backend here and a parser in seer/runtime/target.py.
"""

from seer.backends.base import BACKENDS, Backend, Model, backend_of, register_backend
from seer.backends.cuda import CUDA
from seer.backends.host import HOST

register_backend("llvm", HOST)
register_backend("cuda", CUDA)

__all__ = ["BACKENDS", "Backend", "Model", "backend_of", "register_backend"]
