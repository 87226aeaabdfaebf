"""Winograd's minimal filtering: a dense convolution with fewer multiplications.

F(m x m, r x r) computes an m x m tile of the output from (m + r - 1)^2 products per input channel
instead of r^2 m^2 (Lavin and Gray, arXiv 1509.09308): Y = A^T [(G w G^T) * (B^T d B)] A. The sum over
channels becomes (m + r - 1)^2 matrix products. The matrices follow from interpolation points (Toom and
Cook); symmetric points share work between rows, and points whose powers stay near 1 keep the rounding
error of six points about five times that of the direct sum.

A convolution of stride 2 is the sum of one over the even samples and one over the odd ones, each of
stride 1 and with half of the taps; their products stand side by side, and A^T adds them up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

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

# Finite interpolation points; infinity is one more.
POINTS: dict[int, tuple[Fraction, ...]] = {
    2: (Fraction(0), Fraction(1)),
    3: (Fraction(0), Fraction(1), Fraction(-1)),
    5: (Fraction(0), Fraction(2, 3), Fraction(-2, 3), Fraction(3, 2), Fraction(-3, 2)),
}
TILES = (2, 4)
STRIDES = (1, 2)
MOST_PRODUCTS = 49  # of one tile: the transforms are straight code
# An alternative may need at most this share of the multiplications, tiles at the border included.
# A 3x3 convolution of stride 2 (0.69 for tiles of 2) was no faster than the direct sum.
WORTHWHILE = 0.6


class Scheme(NamedTuple):
    """How tiles of m outputs of r taps are computed along one dimension from n products.

    Attributes:
        at: (m, n), products to outputs.
        g: (n, r), taps.
        bt: (n, window), inputs; the window is the inputs of one tile.
        paired: whether columns 2k - 1 and 2k of `at` belong to points p and -p.
    """

    at: Matrix
    g: Matrix
    bt: Matrix
    paired: bool


@lru_cache(maxsize=64)
def scheme(m: int, taps: int, stride: int) -> Scheme | None:
    """Tiles of m outputs of a correlation with `taps` taps, or None where there are no points for it."""
    window = (m - 1) * stride + taps
    at: list[list[Fraction]] = [[] for _ in range(m)]
    g, bt = [], []
    for phase in range(min(stride, taps)):
        mine = range(phase, taps, stride)
        if len(mine) > 1 and m + len(mine) - 2 not in POINTS:
            return None
        part = _toom_cook(m, len(mine)) if len(mine) > 1 else _single(m)
        for row, more in zip(at, part[0], strict=True):
            row += more
        g += [_spread(row, mine, taps) for row in part[1]]
        bt += [_spread(row, range(phase, window, stride), window) for row in part[2]]
    paired = stride == 1 and taps > 1 and len(bt) % 2 == 0  # 0 and infinity have no partner
    return Scheme(tuple(map(tuple, at)), tuple(g), tuple(bt), paired)


def _spread(row: Sequence[Fraction], places: Sequence[int], length: int) -> tuple[Fraction, ...]:
    found = dict(zip(places, row, strict=True))
    return tuple(found.get(k, Fraction(0)) for k in range(length))


def _single(m: int) -> tuple[Matrix, Matrix, Matrix]:
    """One tap: m products of an input each."""
    one = tuple(tuple(Fraction(i == j) for j in range(m)) for i in range(m))
    return one, ((Fraction(1),),) * m, one


def _toom_cook(m: int, taps: int) -> tuple[Matrix, Matrix, Matrix]:
    """A^T (m, n), G (n, taps) and B^T (n, n) for n = m + taps - 1."""
    n = m + taps - 1
    points = POINTS[n - 1]
    at = tuple((*(p**r for p in points), Fraction(r == m - 1)) for r in range(m))
    g, bt = [], []
    for p in points:
        others = [q for q in points if q != p]
        scale = Fraction(1)
        for q in others:
            scale *= p - q
        g.append(tuple(p**j / scale for j in range(taps)))
        bt.append(_product(others, n))
    g.append((Fraction(0),) * (taps - 1) + (Fraction(1),))
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
Combine = Callable[[Sequence[Fraction], Sequence[Expr]], Expr]


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


def _plainly(row: Sequence[Fraction], values: Sequence[Expr]) -> Expr:
    """Each position for itself."""
    return _sum([(c, v) for c, v in zip(row, values, strict=True) if c])


def _choose(index: Expr, cases: Sequence[Expr]) -> Expr:
    """cases[index]."""
    out = cases[-1]
    for k in range(len(cases) - 2, -1, -1):
        out = select(compare("==", index, k), cases[k], out)
    return out


def _transform(
    left: Matrix,
    right: Matrix,
    combine: Combine,
    row: Expr,
    column: Expr,
    element: Callable[[int, int], Expr],
) -> Expr:
    """Element (row, column) of left @ element @ right^T."""
    ni, nj = len(left[0]), len(right[0])
    half = [_choose(row, [combine(r, [element(i, j) for i in range(ni)]) for r in left]) for j in range(nj)]
    return _choose(column, [combine(r, half) for r in right])


# -- the rewrite ---------------------------------------------------------------------------------


class _Convolution(NamedTuple):
    """y[b, i, j, o] = sum of x[b, i * stride + rh, j * stride + rw, rc] * w[rh, rw, rc, o]."""

    y: Tensor
    x: Tensor
    w: Tensor
    stride: int


def winograd(dag: ComputeDAG) -> list[Alternative]:
    """What saves multiplications in a dense convolution of stride 1 or 2, channels last, in float32."""
    y = dag.anchor
    if y is None or compute_op(y).tag != "conv2d" or y.dtype != "float32":
        return []
    conv = _match(y)
    if conv is None:
        return []
    op = conv.w.op
    if not (dag.is_own_constant(conv.w.name) and isinstance(op, Placeholder) and op.derived is None):
        return []
    n, h, wd, _ = y.shape
    kernel = conv.w.shape[:2]
    out: list[Alternative] = []
    in_blocks: Alternative | None = None
    for m in TILES:
        vertical, horizontal = (scheme(m, r, conv.stride) for r in kernel)
        if vertical is None or horizontal is None or n == 0 or min(h, wd) < m:
            continue
        products = len(vertical.bt) * len(horizontal.bt)
        tiles = -(-h // m) * -(-wd // m)
        saves = tiles * products <= WORTHWHILE * math.prod(kernel) * h * wd
        if saves and products <= MOST_PRODUCTS:
            out.append(Alternative(f"winograd{m}", _rewrite(dag, conv, m, vertical, horizontal, False)))
            if min(h, wd) > m:  # blocks are for large images, for which the largest tiles are best
                blocks = _rewrite(dag, conv, m, vertical, horizontal, True)
                in_blocks = Alternative(f"winograd{m}-blocks", blocks, in_blocks=True)
    return out if in_blocks is None else [in_blocks, *out]


def _match(y: Tensor) -> _Convolution | None:
    """The convolution that a stage is, or None."""
    op = compute_op(y)
    body = op.body
    if len(op.axes) != 4 or len(op.reduce_axes) != 3 or op.reducer is not SUM:
        return None
    if not (isinstance(body, Binary) and body.op == "*"):
        return None
    if not (isinstance(body.a, Read) and isinstance(body.b, Read)):
        return None
    (b, i, j, o), (rh, rw, rc) = (tuple(a.var for a in axes) for axes in (op.axes, op.reduce_axes))
    ranges = {a.name: (0, max(a.extent - 1, 0)) for a in (*op.axes, *op.reduce_axes)}

    def same(read: Read, wanted: tuple[Expr, ...]) -> bool:
        if len(read.indices) != len(wanted):
            return False
        return all(
            affine(simplify(p, ranges)) == affine(simplify(q, ranges))
            for p, q in zip(read.indices, wanted, strict=True)
        )

    if not same(body.b, (rh, rw, rc, o)):
        return None
    for stride in STRIDES:
        if same(body.a, (b, i * stride + rh, j * stride + rw, rc)):
            return _Convolution(y, body.a.tensor, body.b.tensor, stride)
    return None


def _rewrite(
    dag: ComputeDAG, conv: _Convolution, m: int, vertical: Scheme, horizontal: Scheme, blocks: bool
) -> ComputeDAG:
    """The DAG with the convolution computed from tiles.

    All tiles are one axis, which register tiles divide well; for `blocks` of tiles whose products stay in
    a cache, the axes of a tile are those of the image.
    """
    y, x, w, stride = conv
    n, h, wd, co = y.shape
    ci = x.shape[3]
    rows, columns = -(-h // m), -(-wd // m)
    across = len(horizontal.bt)
    products = len(vertical.bt) * across
    needed = tuple((k * m - 1) * stride + r for k, r in zip((rows, columns), w.shape[:2], strict=True))
    image = _grown(x, (n, *needed, ci), f"{y.name}_image")
    left, right = (tuple(tuple(map(float, r)) for r in s.g) for s in (vertical, horizontal))
    derived = Derivation(w.shape, (left, right, None, None), (products, ci, co))
    weights = Tensor(w.name, derived.shape, w.dtype, Placeholder(constant=True, derived=derived))
    combine = _by_pairs if vertical.paired and horizontal.paired else _plainly

    places = (n, rows, columns) if blocks else (n * rows * columns,)
    names = ("b", "h", "w") if blocks else ("t",)

    def spread(*at: Expr) -> Expr:
        *place, p, c = at
        t = place[0]
        b, i, j = place if blocks else (t // (rows * columns), t // columns % rows, t % columns)

        def element(u: int, v: int) -> Expr:
            return image[b, i * (m * stride) + u, j * (m * stride) + v, c]

        return _transform(vertical.bt, horizontal.bt, _by_parity, p // across, p % across, element)

    v = compute(
        (*places, products, ci),
        spread,
        f"{y.name}_input",
        axis_names=(*names, "p", "c"),
        written_out={"p": products},
    )
    rc = reduce_axis(ci, "rc")
    sums = compute(
        (*places, products, co),
        lambda *at: binary("*", v[(*at[:-1], rc.var)], weights[at[-2], rc.var, at[-1]]),
        f"{y.name}_product",
        reduce=[rc],
        reducer=SUM,
        tag="conv2d",
        axis_names=(*names, "p", "c"),
    )

    def gather(b: Expr, i: Expr, j: Expr, o: Expr) -> Expr:
        place = (b, i // m, j // m) if blocks else ((b * rows + i // m) * columns + j // m,)
        return _transform(
            vertical.at,
            horizontal.at,
            combine,
            i % m,
            j % m,
            lambda u, v: sums[(*place, u * across + v, o)],
        )

    op = compute_op(y)
    result = compute(
        y.shape,
        gather,
        y.name,
        axis_names=tuple(a.name for a in op.axes),
        written_out={op.axes[1].name: m, op.axes[2].name: m},
    )
    inputs = [weights if t is w else t for t in dag.inputs]
    return ComputeDAG(_replace(dag.output, y, result, {}), inputs)


def _grown(x: Tensor, shape: tuple[int, ...], name: str) -> Tensor:
    """`x` with zeros after its end, so that `shape` lies in it."""
    if all(have >= need for have, need in zip(x.shape, shape, strict=True)):
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
