"""The loop of a worker process: a request, an answer, until the parent goes away."""

from __future__ import annotations

import sys
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


def serve(worker: Answering) -> None:
    """Serve the parent, on the inherited socket that the command line names, until it goes away."""
    connection = Connection(int(sys.argv[1]))
    while not worker.is_lost:
        try:
            request = connection.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        try:
            connection.send(worker.answer(request))
        except (OSError, KeyboardInterrupt):  # the parent went away meanwhile
            return
