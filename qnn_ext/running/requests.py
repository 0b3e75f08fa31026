"""Requests: calls that run on other threads, and that the caller waits for, or awaits, when it needs their results."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ..errors import QnnError


class Request(Future[Any]):
    """A `concurrent.futures.Future` that a coroutine may await."""

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self).__await__()


class Workers:
    """Threads that serve requests in the order of their arrival. They end with the last reference to this object.

    initializer: is called with `initargs` in every thread as it starts
    """

    def __init__(self, count: int, initializer: Callable[..., None] | None = None, initargs: tuple[Any, ...] = ()):
        self._process = os.getpid()
        self._threads = ThreadPoolExecutor(count, "qnn-ext", initializer, initargs)

    def submit(self, function: Callable[..., Any], *args: Any) -> Request:
        """Have a thread call the function. Raises QnnError after `close`, and in a forked process, which has none of
        the threads."""
        if os.getpid() != self._process:
            raise QnnError("the threads that serve requests stay behind in a fork: make a new engine or pool after it")
        request = Request()
        try:
            self._threads.submit(_serve, request, function, args)
        except RuntimeError:
            raise QnnError("no request can be made any more: it is closed, or Python is ending") from None
        return request

    def close(self, cancel: bool = False) -> None:
        """Wait for the requests made so far; with `cancel` only for those that run already."""
        if os.getpid() == self._process:
            self._threads.shutdown(wait=True, cancel_futures=cancel)


def _serve(request: Request, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if not request.set_running_or_notify_cancel():
        return
    try:
        result = function(*args)
    except BaseException as error:  # belongs to whoever asks for the result
        request.set_exception(error)
    else:
        request.set_result(result)
