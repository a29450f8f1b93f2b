"""Groups that are made again, and ranks that are lost while one is made, or while gloo works for it."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from failures import report_failure
from smdistributed.dataparallel import exceptions
from smdistributed.dataparallel.torch import _fallbacks, torch_smddp
from torch._C import _distributed_c10d as c10d

TIMEOUT = timedelta(seconds=30)
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def report(message: str = "", seconds: float = 0) -> None:
    print(json.dumps({"message": message, "seconds": seconds}), flush=True)


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_soon(*_: object) -> None:
    time.sleep(1)
    die()


def check_sum() -> None:
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [float(SIZE)] * 1000


def again_on_one_store() -> None:
    """Three times the world and two more groups of the same names."""
    store = c10d.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), SIZE, RANK == 0, TIMEOUT)
    for turn in range(3):
        dist.init_process_group("smddp", store=store, rank=RANK, world_size=SIZE, timeout=TIMEOUT)
        if turn % SIZE == RANK:
            time.sleep(0.3)  # another one is first each time
        check_sum()
        pair = dist.new_group([0, 1])
        if RANK < 2:
            gathered = [torch.zeros(1)] * 2 if RANK == 0 else None
            dist.gather(torch.ones(1), gathered, group=pair)
        dist.barrier()
        dist.destroy_process_group()
    store.add("done", 1)
    while RANK == 0 and store.add("done", 0) < SIZE:
        time.sleep(0.01)
    report()


def restarted() -> None:
    """For torchrun: the first attempt loses a rank in an operation, the second one while the group is made."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if attempt == 1 and RANK == 0:
        setattr(_fallbacks, "_gloo", die)  # noqa: B010  (of another type)
    dist.init_process_group("smddp", timeout=TIMEOUT)
    check_sum()
    if attempt == 0 and RANK == 1:
        die()
    check_sum()
    print(f"rank {RANK} done in attempt {attempt}", flush=True)


def death_in_gloos_set_up() -> None:
    if RANK == SIZE - 1:
        setattr(_fallbacks, "_gloo", die)  # noqa: B010  (of another type)
    start = time.monotonic()
    report_failure(exceptions.SMDDPPeerError, start, lambda: dist.init_process_group("smddp", timeout=TIMEOUT))


def failure_in_gloos_set_up() -> None:
    def fail(*_: object) -> None:
        raise OSError("no more descriptors")

    if RANK == SIZE - 1:
        setattr(_fallbacks, "_gloo", fail)  # noqa: B010
    start = time.monotonic()
    report_failure(exceptions.SMDDPError, start, lambda: dist.init_process_group("smddp", timeout=TIMEOUT))


def death_while_gloo_connects() -> None:
    """The others are where gloo looks at nothing of ours: on a store of their own, in which nobody else comes."""

    def alone(store: object, rank: int, size: int, seconds: float) -> object:
        return gloo(c10d.HashStore(), rank, size, 60.0)

    gloo = getattr(_fallbacks, "_gloo")  # noqa: B009  (not exported)
    setattr(_fallbacks, "_gloo", die_soon if RANK == SIZE - 1 else alone)  # noqa: B010
    start = time.monotonic()
    report_failure(exceptions.SMDDPPeerError, start, lambda: dist.init_process_group("smddp", timeout=TIMEOUT))


def segments_of(pid: int) -> set[str]:
    """Names of the shared memory that a process has mapped."""
    return set(re.findall(r"/dev/shm/(smddp-\w+)", Path(f"/proc/{pid}/maps").read_text()))


class Announced(c10d.Store):
    """Calls a function before this rank says how it can be reached."""

    def __init__(self, store: c10d.Store, before: Callable[[], None]) -> None:
        super().__init__()
        self.store = store
        self.before = before

    def set(self, key: str, value: Any) -> None:
        if key.endswith(f"rank/{RANK}"):
            self.before()
        self.store.set(key, value)

    def get(self, key: str) -> bytes:
        return self.store.get(key)

    def check(self, keys: list[str]) -> bool:
        return self.store.check(keys)

    def wait(self, keys: list[str], *timeout: timedelta) -> None:
        self.store.wait(keys, *timeout)


def death_of_the_memorys_maker() -> None:
    """Rank 1 waits for rank 0 to say who is on which host when that has just made this host's memory."""
    folder = Path(sys.argv[2])
    (folder / str(RANK)).write_text(str(os.getpid()))
    store: c10d.Store = c10d.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), SIZE, RANK == 0, TIMEOUT)
    if RANK == SIZE - 1:
        maker, survivor = (int((folder / str(rank)).read_text()) for rank in range(2))

        def strike() -> None:
            while not (made := segments_of(maker)):
                time.sleep(0.001)
            (folder / "segments").write_text("\n".join(made))
            os.kill(maker, signal.SIGKILL)
            os.kill(survivor, signal.SIGCONT)
            die()

        def stop_survivor() -> None:
            time.sleep(0.5)
            os.kill(survivor, signal.SIGSTOP)
            threading.Thread(target=strike).start()

        store = Announced(store, stop_survivor)
    start = time.monotonic()
    report_failure(
        exceptions.SMDDPPeerError,
        start,
        lambda: dist.init_process_group("smddp", store=store, rank=RANK, world_size=SIZE, timeout=TIMEOUT),
    )


def death_before_a_new_group() -> None:
    """Whoever is missing has not begun to meet: only the group of all ranks knows that it never will."""
    dist.init_process_group("smddp", timeout=TIMEOUT)
    dist.barrier()
    if RANK == SIZE - 1:
        die()
    start = time.monotonic()
    report_failure(exceptions.SMDDPPeerError, start, lambda: dist.new_group(list(range(SIZE))))


def survivors_form_a_group() -> None:
    dist.init_process_group("smddp", timeout=TIMEOUT)
    dist.barrier()
    if RANK == SIZE - 1:
        die()
    survivors = list(range(SIZE - 1))
    group = dist.new_group(survivors, use_local_synchronization=True)
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [float(SIZE - 1)] * 3
    report()


def death_in_a_part() -> None:
    dist.init_process_group("smddp", timeout=TIMEOUT)
    part = dist.new_group(list(range(1, SIZE)))
    dist.barrier()
    if RANK == 2:
        die()
    start = time.monotonic()
    if RANK == 0:
        report()
    else:
        report_failure(exceptions.SMDDPPeerError, start, lambda: dist.all_reduce(torch.ones(3), group=part))


def abort_in_gloos_operation() -> None:
    """The last rank does not come. What the others have begun must not keep them from ending."""
    dist.init_process_group("smddp", timeout=timedelta(seconds=60))
    dist.barrier()
    if RANK == SIZE - 1:
        return time.sleep(8)
    if RANK == 0:
        threading.Timer(0.5, torch_smddp.abort).start()
    start = time.monotonic()
    tensors = [torch.ones(1000) for _ in range(SIZE)]
    try:
        dist.all_to_all([torch.empty(1000) for _ in range(SIZE)], tensors)
    except exceptions.SMDDPAbortedError as error:
        message = str(error)
    dist.destroy_process_group()
    report(message, time.monotonic() - start)
    return None


def receive_from_nobody() -> None:
    dist.init_process_group("smddp", timeout=timedelta(seconds=60))
    dist.barrier()
    start = time.monotonic()
    if RANK == 0:
        report_failure(exceptions.SMDDPPeerError, start, lambda: dist.recv(torch.ones(3)))
    else:
        report()


CASES: dict[str, Callable[[], None]] = {
    "again_on_one_store": again_on_one_store,
    "restarted": restarted,
    "death_in_gloos_set_up": death_in_gloos_set_up,
    "death_while_gloo_connects": death_while_gloo_connects,
    "failure_in_gloos_set_up": failure_in_gloos_set_up,
    "death_of_the_memorys_maker": death_of_the_memorys_maker,
    "death_before_a_new_group": death_before_a_new_group,
    "survivors_form_a_group": survivors_form_a_group,
    "death_in_a_part": death_in_a_part,
    "abort_in_gloos_operation": abort_in_gloos_operation,
    "receive_from_nobody": receive_from_nobody,
}

if __name__ == "__main__":
    CASES[sys.argv[1]]()
