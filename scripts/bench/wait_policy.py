"""Measures joint scoring beside a busy process, for each way in which threads wait for each other.

OpenMP's threads spin after each operation by default. Where another process needs a core, such as a
data worker, they spin while the thread that they wait for stands still. `vlmtune` sets
OMP_WAIT_POLICY=PASSIVE, so that they sleep. Both are measured alone and with one busy process, in
turn. Required: beside it at least the speed without it for each free core.

    python -m scripts.bench.wait_policy [--images 32] [--texts 32] [--rounds 4]
"""

import contextlib
import multiprocessing
import os
import statistics
from collections.abc import Iterator
from typing import Any

from scripts.bench.harness import options
from scripts.bench.joint_scoring import Job, one_round

POLICIES = {"spinning": "", "passive": "PASSIVE"}  # values of OMP_WAIT_POLICY; "" for none
CORES = len(os.sched_getaffinity(0))


def spin() -> None:
    """Uses one core for ever."""
    while True:
        pass


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """Another process uses one core during the block."""
    process = multiprocessing.get_context("spawn").Process(target=spin, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def pool(policy: str) -> Any:
    """A process of its own, whose threads wait by a policy. OpenMP reads it when torch loads."""
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS"):
        os.environ.pop(name, None)
    os.environ |= {"OMP_WAIT_POLICY": policy} if policy else {}
    return multiprocessing.get_context("spawn").Pool(1)


def main() -> None:
    """Prints one line for each policy."""
    chosen = options(__doc__, images=32, texts=32, rounds=4)
    job = Job(False, "Mdetr", chosen.images, chosen.texts, 128)
    with contextlib.ExitStack() as stack:
        pools = {name: stack.enter_context(pool(policy)) for name, policy in POLICIES.items()}
        taken: dict[tuple[str, str], list[float]] = {}
        for _ in range(chosen.rounds + 1):
            for beside, context in (("alone", contextlib.nullcontext), ("busy", busy_process)):
                with context():
                    for name, one in pools.items():
                        taken.setdefault((name, beside), []).append(one.apply(one_round, (job,))[1])
    pairs = chosen.images * chosen.texts
    for name in POLICIES:
        # The first round warms up.
        alone, busy = (pairs / statistics.median(taken[name, x][1:]) for x in ("alone", "busy"))
        ratio = (busy / (CORES - 1)) / (alone / CORES)
        print(
            f"{name}: {alone:.0f} pairs/s on {CORES} cores, {busy:.0f} beside a busy process: "
            f"{ratio:.2f} times as fast for each free core (required 1.00)"
        )


if __name__ == "__main__":
    main()
