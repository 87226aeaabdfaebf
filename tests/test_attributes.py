"""Attributes of a wrong type or size: every operator says which one, what would be right, and what it got."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from op_cases import CASES, random_feed

import seer
from seer.dtypes import dtype as dtype_of
from seer.errors import GraphError, UserError
from seer.graph.graph import Graph, Value
from seer.graph.reference import run
from seer.graph.registry import op_def, op_names
from seer.ir.dag import ComputeDAG
from seer.ir.tensor import placeholder

WRONG: dict[str, Any] = {
    "float": 1.5,
    "nan": math.nan,
    "str": "3",
    "bytes": b"12",
    "None": None,
    "bool": True,
    "ragged": [[1, 2], [3]],
    "floats": (1.0, 2.0),
    "bools": [True, False],
    "array": np.array([[1.5]]),
    "scalar": np.array(1),
    "dict": {1: 2},
    "object": object(),
    "huge": 10**30,
    "immense": -(10**5000),
    "huges": (10**30, 10**5000),
}

# What is right although it looks wrong: None where it is the default, and numbers that are numbers.
RIGHT = {
    *((op, a, "None") for op in op_names() for a, default in op_def(op).attrs.items() if default is None),
    *((op, a, "bool") for op in op_names() for a, d in op_def(op).attrs.items() if isinstance(d, bool)),
    *((op, "eps", kind) for op in ("layer_norm", "batch_norm") for kind in ("float", "huge")),
    *(("pad", "value", kind) for kind in ("float", "nan", "bool", "huge")),
    *(("slice", a, "huges") for a in ("begin", "end", "step")),  # as Python counts
    *(("widen", "source", kind) for kind in WRONG),  # it is found, never asked for
}


def inputs_of(g: Graph, op: str) -> tuple[list[Any], dict[str, Any]]:
    """Inputs and attributes that an operator takes."""
    if op == "gather":
        return [g.input((3, 4), name="x"), g.input((2,), "int64", name="i")], {}
    if op == "concat":
        return [[g.input((3, 4), name="x"), g.input((3, 4), name="y")]], {}
    if op == "batch_norm":
        return [g.input((2, 5), name="x"), *(g.input((5,), name=f"p{k}") for k in range(4))], {}
    if op == "matmul":
        return [g.input((3, 3), name="x"), g.input((3, 3), name="z")], {}
    if op == "cast":
        return [g.input((3,), name="x")], {"dtype": "int32"}
    if op == "widen":
        return [g.constant(np.ones(3, np.float16), name="w")], {}
    _, shapes, attrs = next(c for c in CASES if c[0] == op and 0 not in sum(c[1], ()))
    return [g.input(s, name=f"x{k}") for k, s in enumerate(shapes)], attrs


EVERY = [(op, a) for op in op_names() for a in op_def(op).attrs]


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize(("op", "attribute"), EVERY)
def test_a_wrong_attribute_is_named(op: str, attribute: str, kind: str) -> None:
    g = Graph("g")
    inputs, attrs = inputs_of(g, op)
    given = {**attrs, attribute: WRONG[kind]}
    if (op, attribute, kind) in RIGHT:
        check(g.apply(op, *inputs, **given))
        return
    with pytest.raises(GraphError) as e:
        g.apply(op, *inputs, **given)
    text = str(e.value)
    assert len(text) < 500
    assert text.startswith(f"graph g, node {op}_0: {op}("), text
    assert attribute in text.split("): ", 1)[1], text
    assert any(word in text for word in ("given", "unknown dtype '3'", "into 1000", "60 elements, shape")), (
        text
    )
    assert not any(word in text for word in ("object", "iterable", "index", "inhomogeneous", "limit")) or (
        kind == "object"
    ), text


def check(value: Value) -> None:
    """A node can be computed and expressed."""
    g = value.graph
    g.output(value)
    found = run(g, random_feed(g))[0]
    assert (found.shape, found.dtype.name) == (value.shape, value.dtype)
    stand_ins = [placeholder(v.shape, v.dtype, v.name) for v in value.node.inputs]
    assert (
        ComputeDAG(op_def(value.node.op).define(stand_ins, value.node.attrs, "y"), stand_ins).output.shape
        == value.shape
    )


@pytest.mark.parametrize("op", op_names())
@pytest.mark.parametrize("kind", ["str", "None", "ragged", "dict", "object", "immense", "bytes"])
def test_a_wrong_input_is_seer_s_own_error(op: str, kind: str) -> None:
    g = Graph("g")
    inputs, attrs = inputs_of(g, op) if op_def(op).attrs or any(c[0] == op for c in CASES) else ([], {})
    bad = [WRONG[kind], *inputs[1:]] if inputs else [WRONG[kind]] * len(op_def(op).inputs)
    bad = [bad] if op == "concat" else bad
    with pytest.raises(GraphError, match=rf"{op}(: |\()") as e:
        g.apply(op, *bad, **attrs)
    assert len(str(e.value)) < 500


@pytest.mark.parametrize("kind", ["float", "bytes", "ragged", "dict", "object", "huge"])
def test_a_wrong_name_is_named(kind: str) -> None:
    g = Graph("g")
    with pytest.raises(GraphError, match="a name is a string"):
        g.relu(g.input((2,), name="x"), name=WRONG[kind])
    with pytest.raises(GraphError, match="a name is a string"):
        g.input((2,), name=WRONG[kind])


@pytest.mark.parametrize("kind", ["float", "None", "ragged", "dict", "object", "huge", "bytes"])
def test_a_wrong_dtype_is_named(kind: str) -> None:
    with pytest.raises(UserError, match=r"a dtype is one of float32, .* given"):
        dtype_of(WRONG[kind])
    with pytest.raises(UserError, match="a dtype is one of"):
        Graph("g").input((2,), WRONG[kind])


@pytest.mark.parametrize("shape", [(2**40, 2**40), (2**62,), (0, 2**64), (10**5000,)])
def test_arrays_larger_than_any_memory(shape: tuple[int, ...]) -> None:
    with pytest.raises(GraphError, match="larger than any memory"):
        Graph("g").input(shape, name="x")
    x = Graph("g").input((1,), name="x")
    with pytest.raises(GraphError, match="larger than any memory"):
        x.graph.matmul(x.graph.input((2**31, 1)), x.graph.input((1, 2**31)))


def test_a_step_beyond_the_end_takes_one_element() -> None:
    g = Graph("g")
    y = g.input((3, 5), name="x").slice((0, 1), (3, 10**30), (10**30, None))
    assert y.node.attrs["step"] == (3, 1)
    g.output(y)
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    np.testing.assert_array_equal(seer.compile(g)(x), x[:1, 1:])


def test_padding_keeps_the_number_that_was_given() -> None:
    g = Graph("g")
    x = g.input((2,), "int64", name="x")
    g.output(x.pad(((0, 1),), value=2**53 + 1), x.pad([[1, 0]], value=True))
    first, second = run(g, {"x": np.array([5, 6])})
    assert (first.tolist(), second.tolist()) == ([5, 6, 2**53 + 1], [1, 5, 6])
    for value in (1.5, 2**63, math.nan, math.inf):
        with pytest.raises(GraphError, match="value must be a number that int64 holds"):
            x.pad(((0, 1),), value=value)
    with pytest.raises(GraphError, match="value must be a number that float32 holds"):
        g.input((2,)).pad(((0, 1),), value=1e39)
