"""Makes the store that seer ships, seer/data/llvm.npz, from records databases.

    seer tune resnet18 --records resnet18.db ...          # or python -m benchmarks.offline --make-pool
    python scripts/make_store.py resnet18.db bert.db ...

Records of the current features only; the store holds parameters and relative times, no code.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from seer.runtime.records import Records
from seer.search.warm import SHIPPED, WarmStart


def main() -> None:
    """Read the databases and write the store."""
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("records", type=Path, nargs="+")
    p.add_argument("--out", type=Path, default=SHIPPED / "llvm.npz")
    args = p.parse_args()
    every = Records()
    for path in args.records:
        with Records(path) as found:
            every.append(found.all())
    store = WarmStart.of(every)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    store.save(args.out)
    size = args.out.stat().st_size
    print(f"{args.out}: {len(store.workloads)} workloads, {size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
