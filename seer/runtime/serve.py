"""The loop of a worker process: a request, an answer, until the parent goes away."""

from __future__ import annotations

import os
import select
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any, Protocol


class Answering(Protocol):
    """What answers requests."""

    @property
    def is_lost(self) -> bool:
        """Whether it can answer no more."""
        ...

    def answer(self, request: tuple[Any, ...]) -> tuple[Any, ...]:
        """The answer to one request."""
        ...


def _end_with_parent(fd: int) -> None:
    """End the process, whatever it is doing, when the parent's end of its socket closes."""
    hangup = select.poll()
    hangup.register(fd, 0)  # of nothing but a hang-up
    while not hangup.poll():
        pass
    os._exit(0)


def serve(worker: Answering) -> None:
    """Serve the parent, on the inherited socket that the command line names, until it goes away."""
    connection = Connection(int(sys.argv[1]))
    threading.Thread(target=_end_with_parent, args=(connection.fileno(),), daemon=True).start()
    while not worker.is_lost:
        try:
            request = connection.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        try:
            connection.send(worker.answer(request))
        except (OSError, KeyboardInterrupt):  # the parent went away meanwhile
            return
