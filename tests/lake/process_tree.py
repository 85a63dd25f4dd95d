"""A process and all that it started: stopped and woken together."""

import contextlib

import psutil


def process_tree(pid: int) -> list[psutil.Process]:
    """Return a process and all below it."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def stop_tree(pid: int) -> None:
    """Stop all of them, wherever they are; those that they start meanwhile, too."""
    while running := [each for each in process_tree(pid) if not _is_stopped(each)]:
        for each in running:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.suspend()


def wake_tree(pid: int) -> None:
    """Let all of them go on."""
    for each in process_tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            each.resume()


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
