"""What a compiled model needs memory for: counted, as resident sizes depend on the machine."""

from __future__ import annotations

import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seer
from seer import driver, memory
from seer.codegen.artifact import ArgSpec, PackSpec
from seer.codegen.weights import Weight, Weights
from seer.graph import reference
from seer.graph.graph import Graph
from seer.graph.passes import optimize
from seer.graph.pending import Pending, later, transposed
from seer.ir.tensor import Derivation

TARGET = "llvm -threads=1"


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _network(rng: np.random.Generator) -> Graph:
    """A convolution whose weights are folded, moved and packed, and a dense layer."""
    g = Graph("network")
    x = g.input((1, 8, 12, 12), name="x")

    def constant(*shape: int) -> Any:
        return g.constant(rng.random(shape, dtype=np.float32) + np.float32(0.5))

    y = x.conv2d(constant(72, 8, 3, 3), padding=1)
    y = y.batch_norm(*(constant(72) for _ in range(4))).relu()
    g.output(y.global_avg_pool().flatten().dense(constant(72, 1000), constant(1000)))
    return g


def _arrays(graph: Graph) -> list[np.ndarray]:
    return [v.node.attrs["value"] for v in graph.values() if v.node.op == "constant"]


# -- what is alive when ------------------------------------------------------------------------------


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a caller's stack keeps arguments")
def test_constants_are_freed_while_the_model_takes_them(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = [_network(rng)]
    alive = [weakref.ref(a) for a in _arrays(graphs[0]) if a.ndim > 1]
    counts: list[int] = []
    take = Weights.take

    def counted(self: Weights) -> Any:
        for weight in take(self):
            counts.append(sum(r() is not None for r in alive))
            yield weight
            del weight

    monkeypatch.setattr(Weights, "take", counted)
    monkeypatch.setattr(driver, "LARGE_BYTES", 0)
    model = seer.compile(graphs.pop(), TARGET)
    assert counts[0] == 2 and counts[-1] <= 1
    assert not any(r() is not None for r in alive)
    assert model.constant_bytes > 0


def test_a_model_keeps_no_graph(rng: np.random.Generator) -> None:
    graph = _network(rng)
    feed = {"x": rng.random((1, 8, 12, 12), dtype=np.float32)}
    expected = reference.run(graph, feed)[0]
    graphs = weakref.ref(graph)
    model = seer.compile(graph, TARGET)
    del graph
    memory.give_back()
    assert graphs() is None
    np.testing.assert_allclose(model(**feed), expected, rtol=1e-4, atol=1e-4)


def test_a_graph_that_is_kept_can_be_compiled_again(rng: np.random.Generator) -> None:
    graph = _network(rng)
    before = [a.copy() for a in _arrays(graph)]
    x = rng.random((1, 8, 12, 12), dtype=np.float32)
    first, second = (seer.compile(graph, TARGET)(x) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    for a, b in zip(before, _arrays(graph), strict=True):
        np.testing.assert_array_equal(a, b)


def test_passes_share_the_constants_that_they_do_not_change(rng: np.random.Generator) -> None:
    graph = _network(rng)
    new = optimize(graph)
    old = {id(a) for a in _arrays(graph)}
    bias = [a for a in _arrays(new) if a.shape == (1000,)]
    assert bias and all(id(a) in old for a in bias)
    conv = [a for a in _arrays(new) if a.shape == (3, 3, 8, 72)]
    assert [type(a) for a in conv] == [Pending]


def test_a_large_constant_that_is_read_as_it_is_is_not_copied(rng: np.random.Generator) -> None:
    g = Graph("look_up")
    table = rng.random((1024, 128), dtype=np.float32)
    value = g.constant(table)
    g.output(value.embedding(g.input((3,), "int64", name="x")))
    model = seer.compile(g, TARGET)
    kept = value.node.attrs["value"]
    assert kept.nbytes >= memory.MIN_PAGES_BYTES
    assert any(np.shares_memory(c, kept) for c in model._constants)
    np.testing.assert_array_equal(model(np.array([5, 0, 1023])), table[[5, 0, 1023]])


# -- what is imported --------------------------------------------------------------------------------

_COMPILE_AND_RUN = """
import sys
import numpy as np
import seer
from seer.runtime.records import Records

Records(sys.argv[1]).close()
for records in (None, sys.argv[1]):
    model = seer.compile(seer.zoo.mlp(), "llvm -threads=1", records)
    model(*(np.zeros(s.shape, s.dtype) for s in model.inputs))
print(*sorted({m.split(".")[0] for m in sys.modules} & set(sys.argv[2:])))
"""


def test_compiling_imports_nothing_of_the_search(tmp_path: Path) -> None:
    unwanted = ["xgboost", "scipy", "sklearn", "pandas", "numba", "onnx"]
    command = [sys.executable, "-c", _COMPILE_AND_RUN, str(tmp_path / "records.db"), *unwanted, "llvmlite"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.split() == ["llvmlite"]


# -- the parts ---------------------------------------------------------------------------------------


def test_a_table_of_weights_is_taken_once(rng: np.random.Generator) -> None:
    arrays = [rng.random((n,), dtype=np.float32) for n in (3, 5)]
    weights = Weights([Weight(a, ArgSpec("w", a.shape, "float32")) for a in arrays])
    assert weights.sizes == (12, 20)
    for taken, array in zip(weights.take(), arrays, strict=True):
        np.testing.assert_array_equal(taken.array(), array)
    assert not list(weights.take()) and weights.sizes == (12, 20)


def test_what_is_pending_is_computed_when_asked_for(rng: np.random.Generator) -> None:
    calls: list[int] = []

    def doubled(array: np.ndarray) -> np.ndarray:
        calls.append(1)
        return 2 * array

    a = rng.random((2, 3, 4), dtype=np.float32)
    value = transposed(later(a, doubled, a.shape), (2, 0, 1))
    assert value.shape == (4, 2, 3) and value.dtype == np.float32 and not calls
    np.testing.assert_array_equal(np.asarray(value), 2 * a.transpose(2, 0, 1))
    np.testing.assert_array_equal(np.asarray(value, np.float64), (2 * a).transpose(2, 0, 1))
    assert len(calls) == 2


@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (300, 500)])
@pytest.mark.parametrize("order", [np.asarray, np.asfortranarray])
def test_kept_arrays_are_copies(
    rng: np.random.Generator, shape: tuple[int, ...], order: Callable[..., np.ndarray]
) -> None:
    a = order(rng.random(shape))
    kept = memory.kept(a)
    assert kept.flags.c_contiguous and kept.dtype == a.dtype and not np.shares_memory(kept, a)
    np.testing.assert_array_equal(kept, a)


def test_arrays_of_a_block_are_aligned_and_apart(rng: np.random.Generator) -> None:
    arrays = [rng.integers(0, 99, n).astype(d) for n, d in ((5, "float32"), (0, "int64"), (33, "uint8"))]
    block = memory.Block(64 + 0 + 64)
    copies = [block.take(a.shape, a.dtype.name) for a in arrays]
    for copy, array in zip(copies, arrays, strict=True):
        copy[...] = array
    for copy, array in zip(copies, arrays, strict=True):
        assert copy.ctypes.data % memory.ALIGNMENT == 0 or not copy.size
        np.testing.assert_array_equal(copy, array)


@pytest.mark.parametrize("piece", [1, 50, 1 << 18])
def test_a_derived_constant_does_not_depend_on_its_pieces(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    matrix = tuple(map(tuple, rng.random((6, 3))))
    w = rng.random((3, 3, 5, 7), dtype=np.float32)
    derived = Derivation(w.shape, (matrix, matrix, None, None), (36, 5, 7))
    monkeypatch.setattr("seer.ir.tensor._PIECE", piece)
    expected = np.einsum("ai,bj,ijcd->abcd", matrix, matrix, w.astype(np.float64)).reshape(36, 5, 7)
    found = PackSpec(((36,), (5,), (7,)), (0, 1, 2), derived).apply(w)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6)
