"""Starts calls in threads that a process need not wait for."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

_Result = TypeVar("_Result")


def in_thread(call: Callable[[], _Result]) -> "Future[_Result]":
    """Start a call in a daemon thread, so that a process can end without waiting for it."""
    future: Future[_Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as failure:  # `result` raises it in the thread that asks
            future.set_exception(failure)

    Thread(target=run, daemon=True).start()
    return future
