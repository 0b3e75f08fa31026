"""Calls in several Python threads at once."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any


def at_once(function: Callable[[Any], Any], arguments: Iterable[Any]) -> list[Any]:
    """The results for the arguments, each computed in a thread of its own. Raises what one of the calls raises."""
    arguments = list(arguments)
    all_started = Barrier(len(arguments))

    def call(argument: Any) -> Any:
        all_started.wait()
        return function(argument)

    with ThreadPoolExecutor(len(arguments)) as threads:
        return list(threads.map(call, arguments))
