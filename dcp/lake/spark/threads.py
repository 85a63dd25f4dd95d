"""Runs a call in a daemon thread."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

_Result = TypeVar("_Result")


def in_thread(call: Callable[[], _Result]) -> "Future[_Result]":
    """Begin a call in a daemon thread: a process that ends does not wait for it."""
    future: Future[_Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as failure:  # it is for whoever asks for the result
            future.set_exception(failure)

    Thread(target=run, daemon=True).start()
    return future
