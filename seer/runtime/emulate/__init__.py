"""CUDA C run on the CPU, with nothing but a C++ compiler.

`emulate` compiles a kernel as C++ and runs every thread of every block in a process of its own,
so that a crash is an error and not the end of the caller. In checked mode every access to memory is
watched: what lies outside of an array, what nothing has written, what two threads touch with no
barrier between, and barriers that not all threads reach are errors that name the kernel, the
thread, the array and the line.
"""

from seer.runtime.emulate.run import Order, emulate

__all__ = ["Order", "emulate"]
