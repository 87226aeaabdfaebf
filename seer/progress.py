"""The progress display of tuning: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from seer.search.events import TaskStatus, TuneEvent

MAX_ROWS = 24
LINE_EVERY_S = 5.0


class Display:
    """Shows TuneEvents; a context manager, and a callback for `tune`."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stderr)
        self._live: Live | None = None
        self._last_line = -math.inf

    def __enter__(self) -> Display:
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, transient=False)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)
            self._live = None

    def __call__(self, event: TuneEvent) -> None:
        """Show an event."""
        if self._live is not None:
            self._live.update(Group(_table(event), _footer(event)))
            return
        now = time.monotonic()
        if event.kind in ("start", "end") or now - self._last_line >= LINE_EVERY_S:
            self._last_line = now
            self.console.print(_line(event), highlight=False, markup=False, soft_wrap=True)


def _table(event: TuneEvent) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("task", no_wrap=True)
    for name in ("times", "trials", "default ms", "best ms", "speed-up", "GFLOP/s", "failed"):
        table.add_column(name, justify="right")
    by_share = sorted(
        enumerate(event.tasks),
        key=lambda t: -t[1].weight * t[1].best_s if math.isfinite(t[1].best_s) else -math.inf,
    )
    for k, s in by_share[:MAX_ROWS]:
        table.add_row(*_cells(s), style="bold cyan" if k == event.task and event.kind == "round" else "")
    if len(by_share) > MAX_ROWS:
        table.add_row(f"... and {len(by_share) - MAX_ROWS} more")
    return table


def _cells(s: TaskStatus) -> tuple[str, ...]:
    return (
        s.name,
        str(s.weight),
        str(s.trials),
        _ms(s.default_s),
        _ms(s.best_s),
        f"{s.default_s / s.best_s:.2f}" if math.isfinite(s.default_s) and math.isfinite(s.best_s) else "-",
        f"{s.gflop / s.best_s:.1f}" if math.isfinite(s.best_s) and s.best_s > 0 else "-",
        str(s.errors) if s.errors else "",
    )


def _footer(event: TuneEvent) -> Table:
    grid = Table.grid()
    if event.budget:
        grid.add_row(ProgressBar(total=event.budget, completed=event.trials, width=60))
    grid.add_row(Text(_line(event), style="bold"))
    return grid


def _line(event: TuneEvent) -> str:
    budget = f" of {event.budget}" if event.budget is not None else ""
    failed = sum(event.errors.values())
    parts = [
        f"{event.strategy}: {event.trials}{budget} trials",
        f"{event.elapsed_s:.0f} s",
        _model(event),
    ]
    if failed:
        parts.append(f"{failed} failed ({', '.join(f'{n} {r}' for r, n in sorted(event.errors.items()))})")
    if event.kind == "round" and event.task is not None:
        parts.append(event.tasks[event.task].name)
    return ", ".join(parts)


def _model(event: TuneEvent) -> str:
    """The model's time, or how many tasks have one."""
    if math.isfinite(event.latency_s):
        return f"model {_ms(event.latency_s)} ms"
    measured = sum(math.isfinite(t.best_s) for t in event.tasks)
    return f"model - ({measured} of {len(event.tasks)} tasks measured)"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}" if math.isfinite(seconds) else "-"
