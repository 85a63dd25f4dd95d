"""Decoding: chunks of a socket to Arrow columns, and how that compares to one object per message.

``python -m benchmarks.decode [--megabytes N] [--chunk-kib N]`` prints, for three sizes of message,
messages/s and MB/s of splitter and columnar decoder on one core (best of five), and the ratio of
its messages/s to those of the object decoder on such messages. Keys and values vary in length, as
real ones do.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

if __package__ in (None, ""):  # run as a script: the repository's root is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.columns import decode_columns
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import Opcode

SIZES = {"100 B": 100, "1 KB": 1024, "20 KB": 20480}
ROUNDS = 5
OBJECT_MESSAGES = 5000


def stream_of(frame_bytes: int, total_bytes: int, seed: int = 1) -> tuple[bytes, int]:
    """Return mutations of about ``frame_bytes`` each, back to back, and their number."""
    rng = random.Random(seed)
    pool = rng.randbytes(2 * frame_bytes)
    spread = max(1, frame_bytes // 10)
    frames = [
        encode(
            m.Mutation(
                b"\0airport_%d" % rng.randrange(10**6),
                pool[: max(1, frame_bytes - 71 + rng.randrange(-spread, spread))],
                seqno,
                1,
            ),
            Opcode.DCP_MUTATION,
            vbucket=rng.randrange(1024),
        ).to_bytes()
        for seqno in range(1, total_bytes // frame_bytes + 1)
    ]
    return b"".join(frames), len(frames)


def by_columns(data: bytes, chunk_bytes: int) -> int:
    splitter, rows = FrameSplitter(), 0
    for at in range(0, len(data), chunk_bytes):
        block = splitter.feed(data[at : at + chunk_bytes])
        rows += len(decode_columns(block, np.arange(len(block)), collections=True))
    return rows


def by_objects(data: bytes, chunk_bytes: int) -> int:
    splitter, rows = FrameSplitter(), 0
    for at in range(0, len(data), chunk_bytes):
        block = splitter.feed(data[at : at + chunk_bytes])
        rows += sum(decode(block.frame(index)) is not None for index in range(len(block)))
    return rows


def seconds_of(work: Callable[[], int], wanted: int, rounds: int) -> float:
    """Return the processor time of the fastest round; other processes do not count."""
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        found = work()
        best = min(best, time.process_time() - began)
        if found != wanted:
            raise RuntimeError(f"decoded {found} messages, expected {wanted}")
    return best


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--megabytes", type=int, default=64)
    options.add_argument("--chunk-kib", type=int, default=1024)
    chosen = options.parse_args()
    chunk_bytes = chosen.chunk_kib * 1024
    print(f"{'message':>8} {'messages/s':>12} {'MB/s':>8} {'x objects':>10}")
    for name, size in SIZES.items():
        data, count = stream_of(size, chosen.megabytes * 1_000_000)
        seconds = seconds_of(partial(by_columns, data, chunk_bytes), count, ROUNDS)
        few, few_count = stream_of(size, size * OBJECT_MESSAGES)
        slow = seconds_of(partial(by_objects, few, chunk_bytes), few_count, 2)
        ratio = (count / seconds) / (few_count / slow)
        rate, megabytes = count / seconds, len(data) / seconds / 1e6
        print(f"{name:>8} {rate:>12,.0f} {megabytes:>8,.0f} {ratio:>10.1f}")


if __name__ == "__main__":
    main()
