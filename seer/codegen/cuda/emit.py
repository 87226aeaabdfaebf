"""Loop programs of a GPU as CUDA C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from seer.codegen.cuda.exprs import NARROW, VECTOR, Writer, can_make, has_vectors, vector_function
from seer.codegen.cuda.module import CudaModule, Launch, Scratch
from seer.codegen.cuda.prelude import prelude
from seer.codegen.cuda.unroll import unroll_pragma
from seer.codegen.gpu import LoweredKernels
from seer.dtypes import dtype as dtype_of
from seer.dtypes import is_narrow
from seer.errors import BuildError
from seer.ir.divisible import divisor
from seer.ir.expr import Const, Expr, Load, Select, variables
from seer.ir.loops import (
    Buffer,
    CommitCopies,
    Exchange,
    For,
    If,
    Let,
    LoopKind,
    LoopProgram,
    Mma,
    Scope,
    Seq,
    StartCopy,
    Stmt,
    Store,
    Sync,
    WaitForCopies,
    walk_stmts,
)
from seer.ir.simplify import bounds, simplify
from seer.runtime.target import Target

_COPIES = (StartCopy, CommitCopies, WaitForCopies)  # any may be there without the others


def emit_module(lowered: LoweredKernels, target: Target, name: str) -> CudaModule:
    """The CUDA C of one candidate's kernels."""
    kernels = [emit_kernel(p) for p in lowered.programs]
    scratch = tuple(Scratch(b.name, b.size_bytes) for b in lowered.scratch)
    launches = tuple(launch_of(p) for p in lowered.programs)
    programs = lowered.programs
    matrices = {s.narrow or "float32" for p in programs for s in walk_stmts(p.body) if isinstance(s, Mma)}
    has_narrow = any(is_narrow(b.dtype) for p in programs for b in (*p.params, *p.buffers))
    has_copies = any(isinstance(s, _COPIES) for p in programs for s in walk_stmts(p.body))
    source = "\n".join([prelude(has_narrow, matrices, has_copies), *kernels])
    return CudaModule(name, str(target), source, launches, lowered.args, scratch)


def launch_of(program: LoopProgram) -> Launch:
    """The grid of a program and what it takes."""
    loops = {s.kind: s for s in walk_stmts(program.body) if isinstance(s, For)}
    sizes = []
    for kind in (LoopKind.BLOCK, LoopKind.THREAD):
        extent = loops[kind].extent
        assert isinstance(extent, Const)
        sizes.append(int(extent.value))
    _, total = shared_offsets(program)
    return Launch(program.name, sizes[0], sizes[1], tuple(b.name for b in program.params), total)


def shared_offsets(program: LoopProgram) -> tuple[dict[Buffer, int], int]:
    """Where each shared buffer begins, aligned for vectors, and where all end (bytes)."""
    out: dict[Buffer, int] = {}
    end = 0
    for b in program.buffers:
        if b.scope is Scope.BLOCK_SHARED:
            out[b] = end
            end += -(-b.size_bytes // 16) * 16
    return out, end


def emit_kernel(program: LoopProgram) -> str:
    """One __global__ function."""
    return _Kernel(program).text()


class _Kernel:
    def __init__(self, program: LoopProgram) -> None:
        self.program = program
        self.writer = Writer()
        self.lines: list[str] = []
        self.depth = 0
        self.n_temps = 0

    def text(self) -> str:
        program, names = self.program, self.writer.names
        launch = launch_of(program)
        *inputs, out = program.params
        params = [f"const {_memory(b)}* __restrict__ {names.of(b, b.name)}" for b in inputs]
        params.append(f"{_memory(out)}* __restrict__ {names.of(out, out.name)}")
        bounds_of = f"__launch_bounds__({launch.threads})"
        head = f'extern "C" __global__ void {bounds_of} {program.name}({", ".join(params)})'
        offsets = shared_offsets(program)[0] if launch.dynamic_bytes else {}
        with self.block(head):
            for b in program.buffers:
                self.line(self.declaration(b, offsets.get(b)))
            self.stmt(program.body)
        return "\n".join(self.lines) + "\n"

    def declaration(self, b: Buffer, offset: int | None) -> str:
        """A local array, or a shared one; that of a launch's shared memory begins at the offset."""
        name = self.writer.names.of(b, b.name)
        if b.scope is Scope.REGISTER:
            return f"{_memory(b)} {name}{''.join(f'[{n}]' for n in b.shape)};"
        if b.scope is Scope.BLOCK_SHARED:
            size = max(b.num_elements, 1)
            if offset is not None:
                return f"auto& {name} = seer_dynamic_shared<{_memory(b)}[{size}]>({offset});"
            return f"__shared__ __align__(16) {_memory(b)} {name}[{size}];"
        raise BuildError(f"{b!r} has no place on a GPU")

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(f"{head} {{")
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")

    # -- statements --------------------------------------------------------------------------

    def stmt(self, s: Stmt) -> None:
        w = self.writer
        match s:
            case Seq(stmts):
                for k in stmts:
                    self.stmt(k)
            case For(var, extent, LoopKind.BLOCK | LoopKind.THREAD as kind, body):
                source = "blockIdx.x" if kind is LoopKind.BLOCK else "threadIdx.x"
                w.ranges[var] = (0, max(bounds(extent, w.ranges)[1] - 1, 0))
                self.line(f"const int {w.names.of(var, var)} = {source};")
                self.stmt(body)
            case For(var, Const(width), LoopKind.VECTORIZED, StartCopy() as copy):
                w.ranges[var] = (0, int(width) - 1)
                self.start_copy(copy, var, int(width))
            case For(var, Const(width), LoopKind.VECTORIZED, Store() as store) if is_vector(width, store):
                w.ranges[var] = (0, int(width) - 1)
                self.vector_store(var, store, int(width))
            case For(var, extent, kind, body):
                w.ranges[var] = (0, max(bounds(extent, w.ranges)[1] - 1, 0))
                pragma = unroll_pragma(kind, body)
                if pragma:
                    self.line(pragma)
                ctype, name = w.index_type(extent), w.names.of(var, var)
                with self.block(f"for ({ctype} {name} = 0; {name} < {w.index(extent)}; ++{name})"):
                    self.stmt(body)
            case Let(var, value, body):
                w.ranges[var] = self._range(var, value)
                w.known[var] = divisor(value, w.known)
                self.line(f"const {w.index_type(value)} {w.names.of(var, var)} = {w.index(value)};")
                self.stmt(body)
            case If(cond, then, orelse):
                with self.block(f"if ({w.value(cond)})"):
                    self.stmt(then)
                if orelse is not None:
                    with self.block("else"):
                        self.stmt(orelse)
            case Store(buffer, indices, value):
                self.store(buffer, indices, w.value(value))
            case Mma():
                a, b, acc = (w.element(x, at) for x, at, _ in s.parts)
                function = "seer_mma_3xtf32" if s.narrow is None else f"seer_mma_{NARROW[s.narrow]}"
                self.line(f"{function}({acc}, {a}, {b});")
            case StartCopy():
                self.start_copy(s, None)
            case CommitCopies():
                self.line("seer_cp_async_commit();")
            case WaitForCopies(pending):
                self.line(f"seer_cp_async_wait<{pending}>();")
            case Sync():
                self.line("__syncthreads();")
            case Exchange(buffer, indices, value, mask):
                self.store(buffer, indices, f"seer_shuffle_xor({w.value(value)}, {mask})")

    def _range(self, var: str, value: Expr) -> tuple[int, int]:
        return bounds(value, self.writer.ranges)

    def store(self, buffer: Buffer, indices: tuple[Expr, ...], text: str) -> None:
        self.line(f"{self.writer.element(buffer, indices)} = {text};")

    def start_copy(self, s: StartCopy, v: str | None, width: int = 1) -> None:
        """One element, or `width` if both ends are aligned (and one by one if they are not)."""
        w = self.writer
        cond = s.value.cond if isinstance(s.value, Select) else None
        load = s.value.a if isinstance(s.value, Select) else s.value
        assert isinstance(load, Load)
        size = dtype_of(s.buffer.dtype).size_bytes
        to, origin = f"&{w.element(s.buffer, s.indices)}", f"&{w.element(load.buffer, load.indices)}"
        if v is not None:
            wide_to = w.vector_address(s.buffer, s.indices, v, width)
            wide_origin = w.vector_address(load.buffer, load.indices, v, width)
            if wide_to is None or wide_origin is None or (cond is not None and v in variables(cond)):
                name = w.names.of(v, v)
                self.line("#pragma unroll")
                with self.block(f"for (int {name} = 0; {name} < {width}; ++{name})"):
                    self.start_copy(s, None)
                return
            size, to, origin = size * width, wide_to, wide_origin
        if size < 4:  # too little for cp.async
            self.store(s.buffer, s.indices, w.value(s.value))
            return
        if cond is None:
            self.line(f"seer_cp_async_{size}({to}, {origin});")
        else:
            self.line(f"seer_cp_async_{size}_or_zero({to}, {origin}, {w.value(cond)});")

    # -- two or four at once -------------------------------------------------------------------

    def vector_store(self, v: str, s: Store, width: int) -> None:
        """Some elements: loads and the store at once where they are neighbours and aligned."""
        w, dtype = self.writer, s.buffer.dtype
        store, make = (vector_function(what, dtype, width) for what in ("store", "make"))
        address = w.vector_address(s.buffer, s.indices, v, width) if can_make(dtype, width) else None
        whole = w.vector(s.value, v, width)
        if address is not None and whole is not None:
            self.line(f"{store}({address}, {whole});")
            return
        value = w.lanes(s.value, v, width, self.hoist)
        if address is None and value is s.value and v in variables(value):
            self._lane_loop(v, s, width)
            return
        texts = [w.value(w.lane(value, v, k)) for k in range(width)]
        if address is not None:
            self.line(f"{store}({address}, {make}({', '.join(texts)}));")
            return
        for k, text in enumerate(texts):
            at = tuple(simplify(w.lane(i, v, k), w.ranges) for i in s.indices)
            self.store(s.buffer, at, text)

    def _lane_loop(self, v: str, s: Store, width: int) -> None:
        name = self.writer.names.of(v, v)
        self.line("#pragma unroll")
        with self.block(f"for (int {name} = 0; {name} < {width}; ++{name})"):
            self.stmt(s)

    def hoist(self, text: str, kind: str) -> str:
        """A new variable for some loaded values."""
        self.n_temps += 1
        name = f"four_{self.n_temps}" if kind.endswith("4") else f"two_{self.n_temps}"
        self.line(f"const {kind} {name} = {text};")
        return name


def is_vector(width: float, s: Store) -> bool:
    """Whether so many neighbours may be loaded or stored at once."""
    return width in (2, VECTOR) and has_vectors(s.buffer.dtype)


def _memory(b: Buffer) -> str:
    return dtype_of(b.dtype).c
