"""Winograd's minimal filtering: a 3x3 convolution of stride 1 with fewer multiplications.

F(m x m, 3 x 3) computes an m x m tile of the output from (m + 2)^2 products per input channel
instead of 9 m^2 (Lavin and Gray, arXiv 1509.09308): Y = A^T [(G w G^T) * (B^T d B)] A. The sum over
channels becomes (m + 2)^2 matrix products. The matrices follow from m + 1 interpolation points
(Toom and Cook); symmetric points share work between rows, and points whose powers stay near 1 keep
the rounding error of m = 4 about five times that of the direct sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from seer.ir.dag import ComputeDAG, compute_op
from seer.ir.expr import (
    Binary,
    Expr,
    Read,
    all_of,
    as_expr,
    binary,
    call,
    compare,
    rewrite,
    select,
)
from seer.ir.simplify import affine, simplify
from seer.ir.tensor import SUM, Derivation, Placeholder, Tensor, compute, reduce_axis
from seer.search.alternatives import Alternative, register_alternative

Matrix = tuple[tuple[Fraction, ...], ...]

POINTS: dict[int, tuple[Fraction, ...]] = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(2, 3), Fraction(-2, 3), Fraction(3, 2), Fraction(-3, 2)),
}
KERNEL = 3
# An alternative must save at least this share of the multiplications, tiles at the border included.
WORTHWHILE = 0.9


@lru_cache(maxsize=8)
def matrices(m: int) -> tuple[Matrix, Matrix, Matrix]:
    """A^T (m, m + 2), G (m + 2, 3) and B^T (m + 2, m + 2)."""
    points = POINTS[m]
    n = m + KERNEL - 1
    at = tuple((*(p**r for p in points), Fraction(r == m - 1)) for r in range(m))
    g, bt = [], []
    for p in points:
        others = [q for q in points if q != p]
        scale = Fraction(1)
        for q in others:
            scale *= p - q
        g.append(tuple(p**j / scale for j in range(KERNEL)))
        bt.append(_product(others, n))
    g.append((Fraction(0),) * (KERNEL - 1) + (Fraction(1),))
    bt.append(_product(points, n))
    return at, tuple(g), tuple(bt)


def _product(roots: Sequence[Fraction], length: int) -> tuple[Fraction, ...]:
    """The coefficients of the polynomial with these roots, lowest first, padded to `length`."""
    out = [Fraction(1)]
    for q in roots:
        out = [a - q * b for a, b in zip([Fraction(0), *out], [*out, Fraction(0)], strict=True)]
    return tuple(out) + (Fraction(0),) * (length - len(out))


# -- expressions ---------------------------------------------------------------------------------

Terms = Sequence[tuple[Fraction, Expr]]


def _sum(terms: Terms) -> Expr:
    """Sum of coefficient * expression, by fused multiply-adds."""
    out: Expr | None = None
    for c, e in sorted(terms, key=lambda t: (t[0] != 1, t[0] != -1)):
        if out is None:
            out = e if c == 1 else binary("*", e, as_expr(float(c)))
        elif abs(c) == 1:
            out = binary("+" if c > 0 else "-", out, e)
        else:
            out = call("fma", e, as_expr(float(c)), out)
    assert out is not None
    return out


def _by_parity(row: Sequence[Fraction], values: Sequence[Expr]) -> Expr:
    """Even and odd positions apart: the rows of points p and -p differ in one sign only."""
    even = [(c, v) for k, (c, v) in enumerate(zip(row, values, strict=True)) if c and k % 2 == 0]
    odd = [(c, v) for k, (c, v) in enumerate(zip(row, values, strict=True)) if c and k % 2 == 1]
    if not even or not odd:
        return _sum(even or odd)
    sign = 1 if odd[0][0] > 0 else -1
    return binary("+" if sign > 0 else "-", _sum(even), _sum([(sign * c, v) for c, v in odd]))


def _by_pairs(row: Sequence[Fraction], values: Sequence[Expr]) -> Expr:
    """Positions 2k - 1 and 2k together: the weights of the points p and -p differ in sign at most."""
    terms = [(row[0], values[0])]
    for k in range(1, len(row) - 1, 2):
        sign = "+" if row[k] == row[k + 1] else "-"
        terms.append((row[k], binary(sign, values[k], values[k + 1])))
    terms.append((row[-1], values[-1]))
    return _sum([(c, v) for c, v in terms if c])


def _choose(index: Expr, cases: Sequence[Expr]) -> Expr:
    """cases[index]."""
    out = cases[-1]
    for k in range(len(cases) - 2, -1, -1):
        out = select(compare("==", index, k), cases[k], out)
    return out


def _transform(
    matrix: Matrix,
    combine: Callable[[Sequence[Fraction], Sequence[Expr]], Expr],
    row: Expr,
    column: Expr,
    element: Callable[[int, int], Expr],
) -> Expr:
    """Element (row, column) of matrix @ element @ matrix^T."""
    n = len(matrix[0])
    half = [_choose(row, [combine(r, [element(i, j) for i in range(n)]) for r in matrix]) for j in range(n)]
    return _choose(column, [combine(r, half) for r in matrix])


# -- the rewrite ---------------------------------------------------------------------------------


def winograd(dag: ComputeDAG) -> list[Alternative]:
    """F(2x2) and F(4x4) of a DAG with a dense 3x3 convolution of stride 1, channels last, in float32."""
    conv = dag.anchor
    if conv is None or compute_op(conv).tag != "conv2d" or conv.dtype != "float32":
        return []
    operands = _match(conv)
    if operands is None:
        return []
    x, w = operands
    if dag.consumers[w.name] != (conv,) or not (
        isinstance(w.op, Placeholder) and w.op.constant and w.op.derived is None
    ):
        return []
    n, h, wd, _ = conv.shape
    out = []
    for m in POINTS:
        tiles = -(-h // m) * -(-wd // m)
        if min(h, wd) >= m and tiles * (m + 2) ** 2 <= WORTHWHILE * KERNEL**2 * h * wd and n > 0:
            out.append(Alternative(f"winograd{m}", _rewrite(dag, conv, x, w, m)))
    return out


def _match(conv: Tensor) -> tuple[Tensor, Tensor] | None:
    """The image x and the weights w of a sum of x[b, i + rh, j + rw, rc] * w[rh, rw, rc, o]."""
    op = compute_op(conv)
    body = op.body
    if len(op.axes) != 4 or len(op.reduce_axes) != 3 or op.reducer is not SUM:
        return None
    if not (isinstance(body, Binary) and body.op == "*"):
        return None
    if not (isinstance(body.a, Read) and isinstance(body.b, Read)):
        return None
    (b, i, j, o), (rh, rw, rc) = (tuple(a.var for a in axes) for axes in (op.axes, op.reduce_axes))
    if [a.extent for a in op.reduce_axes[:2]] != [KERNEL, KERNEL]:
        return None
    ranges = {a.name: (0, max(a.extent - 1, 0)) for a in (*op.axes, *op.reduce_axes)}

    def same(read: Read, wanted: tuple[Expr, ...]) -> bool:
        if len(read.indices) != len(wanted):
            return False
        return all(
            affine(simplify(p, ranges)) == affine(simplify(q, ranges))
            for p, q in zip(read.indices, wanted, strict=True)
        )

    if same(body.a, (b, i + rh, j + rw, rc)) and same(body.b, (rh, rw, rc, o)):
        return body.a.tensor, body.b.tensor
    return None


def _rewrite(dag: ComputeDAG, conv: Tensor, x: Tensor, w: Tensor, m: int) -> ComputeDAG:
    at, g, bt = matrices(m)
    alpha = m + KERNEL - 1
    n, h, wd, co = conv.shape
    ci = x.shape[3]
    rows, columns = -(-h // m), -(-wd // m)
    image = _grown(x, (n, rows * m + KERNEL - 1, columns * m + KERNEL - 1, ci), f"{conv.name}_image")
    floats = tuple(tuple(float(v) for v in r) for r in g)
    derived = Derivation(w.shape, (floats, floats, None, None), (alpha * alpha, ci, co))
    weights = Tensor(w.name, derived.shape, w.dtype, Placeholder(constant=True, derived=derived))

    def spread(t: Expr, p: Expr, c: Expr) -> Expr:
        b, y, z = t // (rows * columns), t // columns % rows, t % columns
        return _transform(
            bt, _by_parity, p // alpha, p % alpha, lambda i, j: image[b, y * m + i, z * m + j, c]
        )

    tiles = n * rows * columns
    v = compute(
        (tiles, alpha * alpha, ci),
        spread,
        f"{conv.name}_input",
        axis_names=("t", "p", "c"),
        written_out={"p": alpha * alpha},
    )
    rc = reduce_axis(ci, "rc")
    products = compute(
        (tiles, alpha * alpha, co),
        lambda t, p, o: binary("*", v[t, p, rc.var], weights[p, rc.var, o]),
        f"{conv.name}_product",
        reduce=[rc],
        reducer=SUM,
        tag="conv2d",
        axis_names=("t", "p", "c"),
    )

    def gather(b: Expr, i: Expr, j: Expr, o: Expr) -> Expr:
        t = (b * rows + i // m) * columns + j // m
        return _transform(at, _by_pairs, i % m, j % m, lambda r, s: products[t, r * alpha + s, o])

    op = compute_op(conv)
    y = compute(
        conv.shape,
        gather,
        conv.name,
        axis_names=tuple(a.name for a in op.axes),
        written_out={op.axes[1].name: m, op.axes[2].name: m},
    )
    inputs = [weights if t is w else t for t in dag.inputs]
    return ComputeDAG(_replace(dag.output, conv, y, {}), inputs)


def _grown(x: Tensor, shape: tuple[int, ...], name: str) -> Tensor:
    """`x` with zeros after its end, up to `shape`."""
    if x.shape == shape:
        return x

    def body(b: Expr, i: Expr, j: Expr, c: Expr) -> Expr:
        return select(all_of(i < x.shape[1], j < x.shape[2]), x[b, i, j, c], 0.0)

    return compute(shape, body, name)


def _replace(t: Tensor, old: Tensor, new: Tensor, done: dict[int, Tensor]) -> Tensor:
    """`t` with `old` replaced by `new` in everything that it is computed from."""
    if t is old:
        return new
    if isinstance(t.op, Placeholder):
        return t
    if id(t) not in done:

        def read(e: Expr) -> Expr | None:
            return Read(_replace(e.tensor, old, new, done), e.indices) if isinstance(e, Read) else None

        done[id(t)] = Tensor(t.name, t.shape, t.dtype, replace(t.op, body=rewrite(t.op.body, read)))
    return done[id(t)]


register_alternative("winograd", winograd)
