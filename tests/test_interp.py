"""The oracles: tensor expressions by NumPy, loop programs step by step with every misuse an error."""

from __future__ import annotations

import math

import numpy as np
import pytest
from programs import DECAY, conv, matmul, random_inputs, softmax

import seer.ir.interp
from seer.errors import UserError, VerifyError
from seer.ir.dag import ComputeDAG
from seer.ir.expr import Call, Const, Expr, Load, Var, all_of, as_expr, call, cast, compare, select
from seer.ir.interp import eval_dag, run_program
from seer.ir.loops import Buffer, For, If, Let, LoopKind, LoopProgram, Scope, Stmt, Store, seq
from seer.ir.tensor import MAX, PROD, SUM, Tensor, compute, placeholder, reduce_axis

N = 4
AT_I, AT_J, ZERO = Var("i"), Var("j"), as_expr(0)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def evaluated(out: Tensor, **inputs: np.ndarray) -> np.ndarray:
    return eval_dag(ComputeDAG(out), inputs)


# -- tensor expressions --------------------------------------------------------------------------


def test_matmul_bias_relu() -> None:
    dag = matmul(13, 37, 7)
    feed = random_inputs(dag)
    expected = np.maximum(feed["a"] @ feed["b"] + feed["bias"], 0)
    np.testing.assert_allclose(eval_dag(dag, feed), expected, rtol=1e-5, atol=1e-6)


def test_softmax_rows_add_up_to_one() -> None:
    dag = softmax(5, 37)
    out = eval_dag(dag, random_inputs(dag))
    np.testing.assert_allclose(out.sum(axis=1), 1, rtol=1e-6)
    assert (out > 0).all()


def test_a_guarded_read_may_lie_outside() -> None:
    x = placeholder((N,), name="x")
    y = compute((N + 2,), lambda i: select(all_of(i >= 1, i < N + 1), x[i - 1], -7.0), "y")
    a = normal(N)
    np.testing.assert_array_equal(evaluated(y, x=a), np.pad(a, 1, constant_values=-7))


def test_padding_of_an_empty_tensor_reads_nothing() -> None:
    x = placeholder((0,), name="x")
    y = compute((2,), lambda i: select(all_of(i >= 1, i < 1), x[i - 1], 3.0), "y")
    np.testing.assert_array_equal(evaluated(y, x=normal(0)), [3, 3])


def test_an_unguarded_read_outside_is_an_error() -> None:
    x = placeholder((N,), name="x")
    with pytest.raises(VerifyError, match=r"y reads x\[4\] outside its dimension 0"):
        evaluated(compute((N,), lambda i: x[i + 1], "y"), x=normal(N))


@pytest.mark.parametrize(("reducer", "identity"), [(SUM, 0), (PROD, 1), (MAX, -math.inf)])
def test_an_empty_reduction_is_the_identity(reducer: object, identity: float) -> None:
    x, r = placeholder((3, 0), name="x"), reduce_axis(0, "r")
    y = compute((3,), lambda i: x[i, r.var], "y", reduce=[r], reducer=reducer)  # type: ignore[arg-type]
    np.testing.assert_array_equal(evaluated(y, x=normal(3, 0)), np.full(3, identity, np.float32))


def test_nan_passes_through_max() -> None:
    x, r = placeholder((2, 5), name="x"), reduce_axis(5, "r")
    a = normal(2, 5)
    a[1, 3] = np.nan
    out = evaluated(compute((2,), lambda i: x[i, r.var], "y", reduce=[r], reducer=MAX), x=a)
    np.testing.assert_array_equal(out, [a[0].max(), np.nan])


def test_an_ordered_reducer_keeps_its_order() -> None:
    x, r, s = placeholder((2, 3, 4), name="x"), reduce_axis(3, "r"), reduce_axis(4, "s")
    a = normal(2, 3, 4)
    y = compute((2,), lambda i: x[i, r.var, s.var], "y", reduce=[r, s], reducer=DECAY)
    expected = np.zeros(2, np.float32)
    for k in range(12):
        expected = expected * np.float32(0.5) + a.reshape(2, 12)[:, k]
    np.testing.assert_allclose(evaluated(y, x=a), expected, rtol=1e-6)


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    dag = conv(7, 6, 3, 5, 3)
    feed = random_inputs(dag)
    whole = eval_dag(dag, feed)
    monkeypatch.setattr(seer.ir.interp, "MAX_POINTS", 100)
    np.testing.assert_array_equal(eval_dag(dag, feed), whole)


def test_integers_wrap_and_floor() -> None:
    x = placeholder((N,), "int32", name="x")
    a = np.array([-7, 2**31 - 1, 5, -8], np.int32)
    y = compute((N,), lambda i: (x[i] + 1) // 2 % 5, "y")
    expected = [(int(v) // 2) % 5 for v in (-6, -(2**31), 6, -7)]
    np.testing.assert_array_equal(evaluated(y, x=a), np.array(expected, np.int32))


def test_a_cast_truncates() -> None:
    x = placeholder((N,), name="x")
    y = compute((N,), lambda i: cast(x[i], "int64"), "y")
    np.testing.assert_array_equal(
        evaluated(y, x=np.array([-1.9, 1.9, -0.5, 3], np.float32)), np.array([-1, 1, 0, 3])
    )


def test_math_of_float32_is_rounded_once() -> None:
    x, a = placeholder((101,), name="x"), normal(101)
    out = evaluated(compute((101,), lambda i: call("exp", x[i]), "y"), x=a)
    np.testing.assert_array_equal(out, np.exp(a.astype(np.float64)).astype(np.float32))


def test_inputs_that_do_not_fit() -> None:
    dag = matmul(2, 3, 4)
    feed = random_inputs(dag)
    with pytest.raises(UserError, match=r"a must be float32\[2, 4\]"):
        eval_dag(dag, {**feed, "a": feed["a"][:1]})
    with pytest.raises(UserError, match="bias must be"):
        eval_dag(dag, {k: v for k, v in feed.items() if k != "bias"})


# -- loop programs -------------------------------------------------------------------------------

X, Y = (Buffer(n, (N,), "float32", Scope.ARG) for n in "xy")


def loop(kind: LoopKind, body: Stmt, var: str = "i", extent: int = N) -> For:
    return For(var, as_expr(extent), kind, body)


def run(body: Stmt, *buffers: Buffer, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x, y = normal(N), np.full(N, np.nan, np.float32)
    run_program(LoopProgram("k", (X, Y), buffers, body), {"x": x, "y": y}, seed)
    return x, y


def copy(to: Expr, source: Expr) -> Store:
    return Store(Y, (to,), Load(X, (source,)))


@pytest.mark.parametrize("kind", LoopKind)
def test_each_kind_of_loop(kind: LoopKind) -> None:
    x, y = run(loop(kind, copy(AT_I, as_expr(N - 1) - AT_I)))
    np.testing.assert_array_equal(y, x[::-1])


def test_all_lanes_of_a_statement_come_before_the_next() -> None:
    """Each lane reads what its neighbour stored in the statement before."""
    t = Buffer("t", (N,), "float32", Scope.THREAD)
    body = seq(Store(t, (AT_I,), Load(X, (AT_I,))), Store(Y, (AT_I,), Load(t, (as_expr(N - 1) - AT_I,))))
    x, y = run(loop(LoopKind.VECTORIZED, body), t)
    np.testing.assert_array_equal(y, x[::-1])
    with pytest.raises(VerifyError, match="before it is written"):
        run(loop(LoopKind.SERIAL, body), t)


def test_let_in_a_vectorised_loop() -> None:
    x, y = run(loop(LoopKind.VECTORIZED, Let("k", as_expr(N - 1) - AT_I, copy(Var("k"), AT_I))))
    np.testing.assert_array_equal(y, x[::-1])


def test_a_branch_in_a_vectorised_loop_is_an_error() -> None:
    with pytest.raises(VerifyError, match="vectorised loop i holds If"):
        run(loop(LoopKind.VECTORIZED, If(compare("<", AT_I, 2), copy(AT_I, AT_I))))


def test_branches() -> None:
    x, y = run(
        loop(
            LoopKind.SERIAL,
            If(compare("<", AT_I, 2), copy(AT_I, AT_I), Store(Y, (AT_I,), Const(1.0, "float32"))),
        )
    )
    np.testing.assert_array_equal(y, [*x[:2], 1, 1])


def test_only_the_chosen_side_of_a_select_is_read() -> None:
    value = select(compare("<", AT_I, N - 1), Load(X, (AT_I + 1,)), 9.0)
    x, y = run(loop(LoopKind.SERIAL, Store(Y, (AT_I,), value)))
    np.testing.assert_array_equal(y, [*x[1:], 9])


def test_reads_and_writes_outside_are_errors() -> None:
    with pytest.raises(VerifyError, match=r"x: .* index \(4,\) is outside"):
        run(loop(LoopKind.SERIAL, copy(AT_I, AT_I + 1)))
    with pytest.raises(VerifyError, match=r"y: .* index \(-1,\) is outside"):
        run(loop(LoopKind.SERIAL, copy(AT_I - 1, AT_I)))


def test_the_output_holds_nothing_at_first() -> None:
    with pytest.raises(VerifyError, match="before it is written"):
        run(Store(Y, (ZERO,), Load(Y, (ZERO,)) + 1.0))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(copy(ZERO, AT_I), id="two writes"),
        pytest.param(copy(ZERO, ZERO), id="two equal writes"),
        pytest.param(copy(AT_I // 2, AT_I), id="two writes of some"),
    ],
)
def test_parallel_iterations_that_write_the_same_element(body: Stmt) -> None:
    with pytest.raises(VerifyError, match=r"parallel iteration \d and iteration \d meet"):
        run(loop(LoopKind.PARALLEL, body))


@pytest.mark.parametrize("seed", range(6))
def test_a_parallel_iteration_that_reads_what_another_writes(seed: int) -> None:
    """Found in any order, so also where the reader comes first and gets the old value."""
    filled = loop(LoopKind.SERIAL, copy(AT_J, AT_J), "j")
    shift = Store(Y, (AT_I,), Load(Y, ((AT_I + 1) % N,)))
    with pytest.raises(VerifyError, match="meet"):
        run(seq(filled, loop(LoopKind.PARALLEL, shift)), seed=seed)


def test_parallel_iterations_may_read_the_same_element() -> None:
    t = Buffer("t", (1,), "float32", Scope.SHARED)
    body = seq(
        Store(t, (ZERO,), Load(X, (as_expr(2),))),
        loop(LoopKind.PARALLEL, Store(Y, (AT_I,), Load(t, (ZERO,)))),
    )
    x, y = run(body, t)
    np.testing.assert_array_equal(y, np.full(N, x[2]))


def test_what_one_parallel_loop_writes_the_next_may_read() -> None:
    t = Buffer("t", (N,), "float32", Scope.SHARED)
    first = loop(LoopKind.PARALLEL, Store(t, (AT_I,), Load(X, (AT_I,))))
    second = For("j", as_expr(N), LoopKind.PARALLEL, Store(Y, (AT_J,), Load(t, (as_expr(N - 1) - AT_J,))))
    x, y = run(seq(first, second), t)
    np.testing.assert_array_equal(y, x[::-1])


@pytest.mark.parametrize("scope", [Scope.THREAD, Scope.REGISTER])
def test_private_content_does_not_outlive_an_iteration(scope: Scope) -> None:
    t = Buffer("t", (1,), "float32", scope)
    put, take = Store(t, (ZERO,), Load(X, (AT_I,))), Store(Y, (AT_I,), Load(t, (ZERO,)))
    run(loop(LoopKind.PARALLEL, seq(put, take)), t)
    with pytest.raises(VerifyError, match="before it is written"):
        run(loop(LoopKind.PARALLEL, seq(If(compare("==", AT_I, 0), put), take)), t)
    after = Store(Y, (ZERO,), Load(t, (ZERO,)))
    with pytest.raises(VerifyError, match="before it is written"):
        run(seq(loop(LoopKind.PARALLEL, put), after), t)
    with pytest.raises(VerifyError, match="before it is written"):
        run(seq(Store(t, (ZERO,), Load(X, (ZERO,))), loop(LoopKind.PARALLEL, take)), t)


def test_large_integers_stay_exact() -> None:
    a, b = (Buffer(n, (1,), "int64", Scope.ARG) for n in "ab")
    out = np.ones(1, np.int64)
    body = Store(b, (ZERO,), Call("abs", (Load(a, (ZERO,)),), "int64"))
    run_program(LoopProgram("k", (a, b), (), body), {"a": np.array([-(2**53) - 1]), "b": out})
    assert out[0] == 2**53 + 1


def test_arrays_that_do_not_fit() -> None:
    program = LoopProgram("k", (X, Y), (), copy(ZERO, ZERO))
    good = normal(N)
    for bad in (normal(N + 1), good.astype(np.float64), normal(2 * N)[::2]):
        with pytest.raises(UserError, match=r"y must be a C-contiguous float32\[4\]"):
            run_program(program, {"x": good, "y": bad})
    with pytest.raises(UserError, match=r"x must be .* given nothing"):
        run_program(program, {"y": good})
