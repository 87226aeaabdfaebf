"""How a nest fills a GPU, for a population: cycles, occupancy, traffic. All arrays are (P,)."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from seer.codegen.gpu.common import VECTOR
from seer.codegen.gpu.contiguous import move
from seer.codegen.gpu.mma import COLUMNS, ROWS
from seer.dtypes import dtype as dtype_of
from seer.ir.dag import flop_count
from seer.ir.expr import Read, variables
from seer.ir.sketch import Sketch
from seer.runtime.gpu import PARTITIONS, Gpu
from seer.search.gpu_shape import GpuShape, dims_of, reads_of, reads_of_expanded

COPY_INSTRUCTIONS = 10  # of one load from the device and one store to shared memory
LOOP_INSTRUCTIONS = 4
DIRECT_DELAY = 0.25  # of everything, where the inner loop waits for the device's memory
DIRECT_COST = 3.0  # of a load that does not go through shared memory, in loads that do
ISSUE_RATE = 4  # instructions of warps that a multiprocessor starts in a cycle
WORD_CYCLES = 0.5  # of a warp's load of one word a thread, half of the threads reading the same
SECTOR_BYTES = 32  # what one access to the device's memory moves, at least


class GpuNest(GpuShape):
    """A root nest with what it costs."""

    @cached_property
    def cycles(self) -> np.ndarray:
        """Cycles that the warps of one block together keep a multiprocessor busy, were nothing to wait for.

        A warp's multiply-adds, its loads from shared memory and every other instruction each have a
        rate of their own; the slowest counts.
        """
        g = self.gpu
        fma_cycles = g.warp_size * 2 * g.num_sms * g.clock_hz / g.flops
        warps = np.ceil(self.threads / g.warp_size)
        if self.pattern == "mma":
            by_matrices: np.ndarray = warps * self._matrix_cycles()
            return by_matrices
        if self.pattern != "tiled":
            per_thread = self.flop * self.padded / (self.blocks * self.threads)
            simple: np.ndarray = warps * per_thread * fma_cycles
            return simple
        terms = self.product(self.reduced, 0, 1, 2).astype(float)
        fma = self.tile * terms
        loads, words, copies = np.zeros(self.count), np.zeros(self.count), np.zeros(self.count)
        chosen = {t: (choice, dims) for t, choice, dims in self.staged()}
        for r in reads_of(self.sketch, self.nest.stage):
            used = set().union(*(variables(i) for i in r.indices)) if r.indices else set()
            mine = self.product([a for a in self.axes if a in used], 1, 3, 4)
            choice, dims = chosen.get(r.tensor.name, (np.zeros(self.count, dtype=np.int64), ()))
            words += mine * terms * np.where(choice > 0, 1.0, DIRECT_COST)
            spatial = [d for d in dims if any(a in self.axes for a, _ in d.terms)]
            near = np.zeros(self.count, dtype=bool)
            for k, last in ((1, dims[-1:]), (2, spatial[-1:])):
                for d in last:
                    inner = [a for a, c in d.terms if c == 1 and a in self.axes]
                    if inner:
                        near |= (choice == k) & (self.trip(inner[-1], 4) % VECTOR == 0)
            loads += mine * terms * np.where(choice > 0, 1.0 / np.where(near, VECTOR, 1), DIRECT_COST)
            piece = np.ones(self.count)
            for d in dims:
                piece = piece * d.extent(self.covered)
            if dims:
                extent, shape = dims[-1].extent(self.covered), r.tensor.shape[-1]
                wide = (extent % VECTOR == 0) & (shape % VECTOR == 0)
                rounds = np.ceil(piece / self.threads / np.where(wide, VECTOR, 1))
                stores = np.where(wide & (choice == 2), VECTOR, 1)
                mine_too = rounds * self.product(self.reduced, 0) * (COPY_INSTRUCTIONS + stores)
                copies += np.where(choice > 0, mine_too, 0)
        unrolled = np.maximum(self.column(self.nest.unroll, 0), self.tile) / np.maximum(self.tile, 1)
        loops = terms / np.maximum(unrolled, 1) * LOOP_INSTRUCTIONS
        issued = (fma + loads + copies + loops) / ISSUE_RATE
        slowest = np.maximum(np.maximum(fma * fma_cycles, issued), words * WORD_CYCLES + copies)
        direct = sum(((choice == 0).astype(float) for choice, _ in chosen.values()), np.zeros(self.count))
        total: np.ndarray = warps * slowest * (1 + DIRECT_DELAY * direct)
        return total

    def _matrix_cycles(self) -> np.ndarray:
        """Cycles of one warp's share of a block's matrix product."""
        g = self.gpu
        steps = np.ones(self.count)
        for a in self.op.reduce_axes:
            steps = steps * -(-max(a.extent, 1) // self.covered[a.name]) * self.covered[a.name]
        terms, products = self.roles.piece_terms, self.roles.products
        steps = steps / terms
        flops = g.tf32_flops if terms == 8 else g.half_flops
        mma = products * 2 * ROWS * COLUMNS * terms * g.num_sms * g.clock_hz / flops
        # Pairs of neighbours are loaded at once, if they are neighbours in memory too.
        each = [1.0 if terms == 8 or self._reads_pairs(r) else 2.0 for r in (self.roles.a, self.roles.b)]
        loads = 4 * each[0] * self.pieces[0] + 2 * each[1] * self.pieces[1]
        multiplied = self.pieces[0] * self.pieces[1] * mma
        issued = (self.pieces[0] * self.pieces[1] * products + loads * 4) / ISSUE_RATE
        copies = self._copied() / self.threads / VECTOR * COPY_INSTRUCTIONS
        total: np.ndarray = steps * np.maximum(multiplied, np.maximum(issued, loads)) + copies / ISSUE_RATE
        return total

    def _reads_pairs(self, r: Read) -> bool:
        """Whether neighbouring terms of a matrix product are neighbours in a tensor."""
        last = dims_of(self.sketch, self.nest.stage, r.tensor.name)[-1]
        return (self.roles.terms, 1) in last.terms

    def _copied(self) -> np.ndarray:
        """Words of four bytes that a block of a matrix product copies to shared memory."""
        chunks = np.ones(self.count)
        for a in self.op.reduce_axes:
            chunks = chunks * np.ceil(max(a.extent, 1) / self.covered[a.name])
        out = np.zeros(self.count)
        for r in (self.roles.a, self.roles.b):
            piece = np.ones(self.count)
            for d in dims_of(self.sketch, self.nest.stage, r.tensor.name):
                piece = piece * d.extent(self.covered)
            out += piece * chunks * dtype_of(r.tensor.dtype).size_bytes / 4
        return out

    # -- how full the machine is -----------------------------------------------------------------

    @cached_property
    def blocks_per_sm(self) -> np.ndarray:
        """Blocks that one multiprocessor holds at once (0: none fits)."""
        g = self.gpu
        warps = -(-self.threads // g.warp_size)
        registers = np.minimum(self.registers, g.registers_per_thread)
        warps_with_registers = g.registers_per_sm // PARTITIONS // g.warp_registers(registers) * PARTITIONS
        limits = [
            np.full(self.count, g.max_blocks_per_sm),
            g.max_threads_per_sm // np.maximum(warps * g.warp_size, 1),
            warps_with_registers // np.maximum(warps, 1),
            g.shared_bytes_per_sm // np.maximum(self.shared_bytes + g.reserved_shared_bytes, 1),
        ]
        out: np.ndarray = np.min(np.stack(limits), axis=0)
        return out

    @cached_property
    def occupancy(self) -> np.ndarray:
        """Warps that a multiprocessor holds, as a share of what it can."""
        g = self.gpu
        warps = np.minimum(self.blocks_per_sm, -(-self.blocks // g.num_sms)) * -(-self.threads // g.warp_size)
        share: np.ndarray = warps * g.warp_size / g.max_threads_per_sm
        return share

    @cached_property
    def busy(self) -> np.ndarray:
        """Which share of the multiprocessors' time blocks fill: the last wave is rarely full."""
        at_once = self.gpu.num_sms * np.maximum(self.blocks_per_sm, 1)
        waves = np.ceil(self.blocks / at_once)
        per_sm = np.ceil(self.blocks / self.gpu.num_sms)
        whole = np.maximum(waves - 1, 0) * np.maximum(self.blocks_per_sm, 1)
        rest = np.minimum(per_sm - whole, self.blocks_per_sm)
        share: np.ndarray = self.blocks / (self.gpu.num_sms * np.maximum(whole + rest, 1))
        return share

    # -- work and traffic ------------------------------------------------------------------------

    @cached_property
    def flop(self) -> float:
        """Operations of all stages of the nest."""
        dag = self.sketch.dag
        stages = {self.nest.stage, self.nest.output, *self.reductions}
        return float(sum(flop_count(dag.tensor(s)) for s in stages)) + self.points

    @cached_property
    def padded(self) -> np.ndarray:
        """By how much tiles that reach over the end of axes add to the work."""
        out: np.ndarray = np.ones(self.count)
        if self.pattern == "tiled":
            for a in (*self.op.axes, *self.op.reduce_axes):
                out = out * (self.step(a.name, 0) * self.trip(a.name, 0) / max(a.extent, 1))
            return out
        if self.pattern == "mma":
            return out
        if self.pattern == "rows":
            out = out * self.blocks * self.rows_per_block / self.num_rows
        else:
            out = out * self.blocks * self.threads * self.items / self.points
        return out

    @cached_property
    def unique_bytes(self) -> float:
        """Bytes read and written if everything is moved once."""
        dag = self.sketch.dag
        stages = {self.nest.stage, self.nest.output, *self.reductions}
        read: dict[str, float] = {}  # no more of a tensor than is asked for (the rows of a table)
        for s in stages:
            for r in reads_of_expanded(self.sketch, s):
                read[r.tensor.name] = read.get(r.tensor.name, 0.0) + self._points_of(s)
        total = 0.0
        for name in read.keys() - stages:
            t = dag.tensor(name)
            total += min(read[name], float(math.prod(t.shape))) * dtype_of(t.dtype).size_bytes
        out = dag.tensor(self.nest.output)
        return float(total + math.prod(out.shape) * dtype_of(out.dtype).size_bytes)

    @cached_property
    def moved_bytes(self) -> np.ndarray:
        """Bytes that all blocks together ask of the caches and the device's memory."""
        out: np.ndarray = np.full(self.count, float(self.points * self.size))
        if self.pattern == "mma":
            out = out + 4 * self.blocks * self._copied()
            return out
        if self.pattern != "tiled":
            for s in {self.nest.stage, self.nest.output, *self.reductions}:
                out += len(reads_of_expanded(self.sketch, s)) * self._points_of(s) * self.size
            out = out * self.waste
            return out
        steps = self.blocks * self.product(self.reduced, 0)
        chosen = {t: (choice, dims) for t, choice, dims in self.staged()}
        for r in reads_of(self.sketch, self.nest.stage):
            size = dtype_of(r.tensor.dtype).size_bytes
            used = set().union(*(variables(i) for i in r.indices)) if r.indices else set()
            direct = (
                steps * self.threads * self.product([a for a in self.axes if a in used], 1, 3, 4)
            ) * self.product([a for a in self.reduced if a in used], 1, 2)
            choice, dims = chosen.get(r.tensor.name, (np.zeros(self.count, dtype=np.int64), ()))
            piece = np.ones(self.count)
            for d in dims:
                piece = piece * d.extent(self.covered)
            row = dims[-1].extent(self.covered) * size if dims else self.ones() * size
            waste = np.ceil(row / SECTOR_BYTES) * SECTOR_BYTES / row
            if not dims:
                out += size * direct
                continue
            # What threads read where it lies is read again where the first-level cache forgot it.
            out += size * steps * piece * waste * np.where(choice > 0, 1.0, 1.5)
        return out

    def _points_of(self, stage: str) -> float:
        op = self.sketch.dag.op(stage)
        return float(math.prod(a.extent for a in (*op.axes, *op.reduce_axes)))

    @cached_property
    def waste(self) -> np.ndarray:
        """Bytes moved for each byte used, where neighbouring threads read apart."""
        if self.pattern in ("tiled", "mma"):
            return np.ones(self.count)
        axis = self._fast_axis()
        if axis is None:
            return np.ones(self.count)
        worst = []
        ranges = {a.name: (0, max(a.extent - 1, 0)) for a in (*self.op.axes, *self.op.reduce_axes)}
        for r in reads_of_expanded(self.sketch, self.nest.stage):
            step = move(r, axis, ranges)
            worst.append(min(max(step * self.size, 1), SECTOR_BYTES) / self.size if step > 1 else 1.0)
        apart = max(sum(worst) / len(worst), 1.0) if worst else 1.0
        if self.pattern != "rows":
            return np.full(self.count, apart)
        together = (self.row_threads if self.is_near else self.rows_per_block) * self.size
        few: np.ndarray = apart * np.maximum(SECTOR_BYTES / together, 1.0)
        return few

    def _fast_axis(self) -> str | None:
        """The axis along which neighbouring threads lie."""
        if self.pattern == "rows" and self.is_near and self.op.reduce_axes:
            return self.op.reduce_axes[-1].name
        real = [a.name for a in self.op.axes if a.extent > 1]
        return real[-1] if real else None

    @cached_property
    def serial(self) -> np.ndarray:
        """Terms that a thread combines one after another, its accumulators at once."""
        if self.pattern == "tiled":
            return self.product(self.reduced, 0, 1, 2)
        if self.pattern == "mma":
            return np.full(self.count, self.terms / self.roles.piece_terms)
        if self.pattern == "rows":
            out = np.zeros(self.count)
            for s in self.reductions or [self.nest.stage]:
                op = self.sketch.dag.op(s)
                out += np.ceil(math.prod(a.extent for a in op.reduce_axes) / self.row_threads)
            return out + np.ceil(self.points / self.num_rows / self.row_threads)
        return self.items * float(self.terms)

    @cached_property
    def steps(self) -> np.ndarray:
        """Times that the threads of a block wait for each other."""
        if self.pattern == "tiled":
            return self.product(self.reduced, 0) * (self.shared_bytes > 0)
        if self.pattern == "mma":
            out = np.ones(self.count)
            for a in self.op.reduce_axes:
                out = out * np.ceil(max(a.extent, 1) / self.covered[a.name])
            return out
        if self.pattern == "rows":
            tree = np.log2(np.maximum(self.row_threads, 1)) + 1
            return len(self.reductions) * np.where(self.is_near, 2.0, tree)
        return np.zeros(self.count)


def gpu_nests(sketch: Sketch, rows: np.ndarray, gpu: Gpu) -> list[GpuNest]:
    """The kernels of a sketch."""
    return [GpuNest(sketch, n, rows, gpu) for n in sketch.nests]
