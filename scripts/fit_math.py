"""Fits the polynomials of seer/codegen/llvm/mathlib.py and prints their coefficients.

    python scripts/fit_math.py            # needs scipy

Each is a weighted least-squares fit at Chebyshev points in double precision, lowest power first;
the weight makes the error of the whole function relative.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import special

Function = Callable[[np.ndarray], np.ndarray]


def fit(f: Function, low: float, high: float, degree: int, weight: Function | None = None) -> np.ndarray:
    """Coefficients of a polynomial near `f` on [low, high], lowest power first."""
    k = np.arange(4000)
    x = (low + high) / 2 + (high - low) / 2 * np.cos(np.pi * (k + 0.5) / len(k))
    w = np.ones_like(x) if weight is None else weight(x)
    a = np.vander(x, degree + 1, increasing=True)
    for _ in range(30):  # Lawson's reweighting: least squares towards least maximum
        c = np.linalg.lstsq(a * w[:, None], f(x) * w, rcond=None)[0]
        error = np.abs(a @ c - f(x)) * (1 if weight is None else weight(x))
        w = w * np.sqrt(error / error.max() + 0.05)
    print(f"    # largest weighted error {error.max():.1e}")
    return c


def show(name: str, c: np.ndarray) -> None:
    """One Python tuple of float32 values."""
    values = ", ".join(repr(float(np.float32(v))) for v in c)
    print(f"{name} = ({values})\n")


def main() -> None:
    """Print every table."""
    ln2 = np.log(2.0) / 2 * 1.001
    show("_EXP", fit(lambda r: (special.exprel(r) - 1) / r if r.all() else r, -ln2, ln2, 5, lambda r: r * r))
    show(
        "_LOG",
        fit(lambda f: (np.log1p(f) - f + f * f / 2) / f**3, 2**-0.5 - 1, 2**0.5 - 1, 8, lambda f: f * f),
    )
    show("_TANH", fit(lambda s: (np.tanh(np.sqrt(s)) / np.sqrt(s) - 1) / s, 1e-12, 0.66**2, 5, lambda s: s))
    show("_ERF_NEAR", fit(lambda s: special.erf(np.sqrt(s)) / np.sqrt(s) - 1, 1e-12, 0.9**2, 6))
    # erfc(t) = exp(-t - t * P(t)); what it is off by shows little where erfc is small.
    show(
        "_ERF_FAR",
        fit(lambda t: -np.log(special.erfc(t)) / t - 1, 0.9, 4.0, 7, lambda t: t * special.erfc(t)),
    )


if __name__ == "__main__":
    main()
