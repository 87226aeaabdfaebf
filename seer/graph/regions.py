"""Regions: which stretches of a model run slice by slice, by a model of memory traffic.

The arrays between the kernels of a large batch leave the last-level cache before they are read. Run
for one slice of the batch after another, each kernel finds there what the one before has written. It
costs a call of each kernel and a pass over its weights for each slice.

A kernel's access hits as far as what was touched since the last access to the same array fits into the
cache. A read that misses moves the array once, a write that leaves the cache twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from seer import flags
from seer.graph.graph import Value
from seer.graph.partition import Partition, Region, size_of
from seer.graph.slices import Slices, cut
from seer.runtime.target import Target

DRAM_BYTES_PER_S = 20e9
L3_BYTES_PER_S = 40e9
FLOP_PER_LANE_S = 8e9  # per second and lane of a vector
CALL_S = 5e-6  # of a kernel: its threads meet, and its first accesses are far away
MIN_GAIN = 0.1  # of the time of a stretch, so that slices are worth kernels of their own


def sliced(parts: Partition, target: Target) -> Partition:
    """The partition with the regions that a target should run slice by slice; on a GPU, none."""
    if target.gpu is not None:
        return parts
    out = cut(parts, choose(parts, target))
    if out.regions:
        flags.debug("partition", lambda: str(out))
    return out


def choose(parts: Partition, target: Target) -> list[Region]:
    """The regions of a partition that save the most time, by the model."""
    traffic = _Traffic(parts, target)
    n = len(parts.subgraphs)
    if not traffic.may_save_s(0):
        return []
    slices = Slices(parts)
    best: list[tuple[float, Region | None]] = [(0.0, None)]  # seconds saved by the first kernels
    found: list[list[tuple[float, Region]]] = [[] for _ in range(n + 1)]  # by the end
    for start in range(n):
        for count in slices.counts(start) if traffic.leaves(start) else ():
            for region, gain_s in traffic.stretches(slices, start, count):
                found[region.stop].append((gain_s, region))
    for stop in range(1, n + 1):
        options = [(best[r.start][0] + gain_s, r) for gain_s, r in found[stop]]
        best.append(max([(best[stop - 1][0], None), *options], key=lambda o: o[0]))
    out = []
    stop = n
    while stop:
        last = best[stop][1]
        if last is not None:
            out.append(last)
        stop = last.start if last is not None else stop - 1
    return out[::-1]


@dataclass(frozen=True)
class _Read:
    """A kernel's reading of an array that is no constant.

    Attributes:
        made: position of the kernel that makes it, -1 for inputs.
        before: position of the kernel that made or read it last, -1 if none did.
        is_last: whether nothing reads it later.
    """

    value: Value
    size_bytes: int
    made: int
    before: int
    is_last: bool

    def bytes_since(self, between: float, count: int) -> float:
        """What is touched since its last use, given the outputs and weights of the kernels from there on."""
        return between + (self.size_bytes / count if self.before != self.made else 0)


class _Traffic:
    """Seconds that a target takes to move the arrays of a partition."""

    def __init__(self, parts: Partition, target: Target) -> None:
        self._target = target
        constants = [{v for v in s.inputs if v.node.op == "constant"} for s in parts.subgraphs]
        self._weights = [sum(map(size_of, c)) for c in constants]
        self._outputs = [size_of(s.output) for s in parts.subgraphs]
        self._reads = _reads(parts)
        self._sum_outputs, self._sum_weights = _sums(self._outputs), _sums(self._weights)
        flop_per_s = FLOP_PER_LANE_S * target.lanes("float32") * target.num_threads
        moved = [self._moved(k) / DRAM_BYTES_PER_S for k in range(len(parts.subgraphs))]
        work = [s.dag.flop_count / flop_per_s for s in parts.subgraphs]
        self._sum_moved_s, self._sum_work_s = _sums(moved), _sums(work)
        self._leave = {r.made for k, reads in enumerate(self._reads) for r in reads if self._missed(r, k, 1)}

    def may_save_s(self, start: int) -> float:
        """Seconds that could be saved at most from kernel `start` on."""
        return self._sum_moved_s[-1] - self._sum_moved_s[start]

    def leaves(self, k: int) -> bool:
        """Whether some of kernel k's output leaves the cache before it is read: a region can begin there."""
        return k in self._leave

    def stretches(self, slices: Slices, start: int, count: int) -> list[tuple[Region, float]]:
        """Regions from `start` on that pay, and the seconds that each saves."""
        out = []
        saved = again = widest = 0.0  # bytes moved no more; bytes of weights from the last level
        arriving: list[tuple[int, float]] = []  # from before the region: bytes, and how much misses anyway
        for k in range(start, len(self._outputs)):
            if not slices.allow(k, start, count):
                break
            for r in self._reads[k]:
                if r.before < 0:
                    pass  # it is in no cache either way
                elif r.before < start:
                    arriving.append((r.size_bytes, self._missed(r, k, 1)))
                else:
                    saved += r.size_bytes * (self._missed(r, k, 1) - self._missed(r, k, count))
                if r.made >= start and r.is_last:
                    saved += 2 * r.size_bytes * (self._left(r.made, k, 1) - self._left(r.made, k, count))
            widest = max(widest, self._outputs[k] + sum(r.size_bytes for r in self._reads[k]))
            again += self._weights[k] if self._weights[k] > self._target.l2_bytes / 2 else 0
            weights = self._sum_weights[k + 1] - self._sum_weights[start]
            resident = weights + widest / count
            late = sum(size * max(0, self._miss(size + resident) - missed) for size, missed in arriving)
            moved = saved - late - (count - 1) * weights * self._miss(resident)
            calls_s = CALL_S * (count - 1) * (k + 1 - start) + (count - 1) * again / L3_BYTES_PER_S
            work_s = self._sum_work_s[k + 1] - self._sum_work_s[start]
            if self.may_save_s(start) - calls_s < MIN_GAIN * work_s:  # nor will it be worth it further on
                break
            gain_s = moved / DRAM_BYTES_PER_S - calls_s
            if gain_s > MIN_GAIN * (work_s + self._sum_moved_s[k + 1] - self._sum_moved_s[start]):
                out.append((Region(start, k + 1, count), gain_s))
        return out

    def _moved(self, k: int) -> float:
        """Bytes that kernel k reads again from memory, and twice what it is the last to read."""
        moved = 0.0
        for r in self._reads[k]:
            moved += r.size_bytes * self._missed(r, k, 1)
            if r.made >= 0 and r.is_last:
                moved += 2 * r.size_bytes * self._left(r.made, k, 1)
        return moved

    def _missed(self, r: _Read, k: int, count: int) -> float:
        """How much of a read by kernel k misses that need not: a number from 0 to 1."""
        if r.before < 0:
            return 0.0
        return self._miss(r.bytes_since(self._between(r.before, k, count), count))

    def _left(self, made: int, k: int, count: int) -> float:
        """How much of the output of kernel `made` has left the cache when kernel k has read it."""
        return self._miss(self._between(made, k, count))

    def _between(self, first: int, last: int, count: int) -> float:
        outputs = self._sum_outputs[last + 1] - self._sum_outputs[first]
        return outputs / count + self._sum_weights[last + 1] - self._sum_weights[first]

    def _miss(self, touched_bytes: float) -> float:
        """How much of an array is gone after so many bytes: nothing below half of the cache, all above it."""
        return min(1.0, max(0.0, 2 * touched_bytes / self._target.l3_bytes - 1))


def _sums(numbers: list[int] | list[float]) -> list[float]:
    """The sums of the first 0, 1, ... numbers."""
    out = [0.0]
    for x in numbers:
        out.append(out[-1] + x)
    return out


def _reads(parts: Partition) -> list[list[_Read]]:
    """What each kernel reads of inputs and other kernels' outputs."""
    made = {s.output: k for k, s in enumerate(parts.subgraphs)}
    used = dict(made)
    last: dict[Value, int] = {}
    read: list[list[Value]] = []
    for k, s in enumerate(parts.subgraphs):
        origins = dict.fromkeys(map(parts.origin, s.inputs))
        read.append([v for v in origins if v.node.op != "constant"])
        last |= dict.fromkeys(read[-1], k)
    out = []
    for k, values in enumerate(read):
        out.append([_Read(v, size_of(v), made.get(v, -1), used.get(v, -1), last[v] == k) for v in values])
        used |= dict.fromkeys(values, k)
    return out
