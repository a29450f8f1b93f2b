"""What happens when something fails: on every rank the step ends, and says where and why (issue point 9)."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any

import pytest
import torch
from smp_jobs import run_ranks
from torch import nn

CONFIG = {"partitions": 2, "microbatches": 4, "auto_partition": False, "default_partition": 0, "ddp": True}


class Fragile(nn.Module):
    """Fails in its third forward, or in its backward; or takes the rank down; or never answers."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.fault = fault
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 3:
            if self.fault == "forward":
                raise ZeroDivisionError("the third call")
            if self.fault == "killed" or (self.fault == "killed_last" and os.environ["RANK"] == "3"):
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "silent":
                time.sleep(5)
        y: torch.Tensor = self.inner(x)
        if self.fault == "backward":
            y.register_hook(_fail)
        return y


def _fail(_gradient: torch.Tensor) -> None:
    raise ArithmeticError("in a hook of the backward")


class Net(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = Fragile(fault)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(self.first(x))
        return y.sum()


def _job(fault: str, where: int, config: dict[str, Any]) -> tuple[str, str]:
    """Run three steps; return the class and the text of what the first failing one raised."""
    import smdistributed.modelparallel.torch as smp

    smp.init(config)
    net = Net(fault if fault in ("forward", "backward", "killed", "killed_last", "silent") else "")
    smp.set_partition(net.second, 1)
    model = smp.DistributedModel(net)

    @smp.step
    def train(model: Any, x: torch.Tensor) -> torch.Tensor:
        loss = model(x)
        if fault == "body" and smp.rank() == where:
            raise LookupError("in the step function")
        model.backward(loss)
        if fault == "exit" and smp.rank() == where:
            raise SystemExit(9)
        return loss

    try:
        for _ in range(3):
            train(model, torch.ones(8, 4))
    except BaseException as error:
        return type(error).__name__, str(error)
    return "nothing", ""


@pytest.mark.parametrize("fault", ["forward", "backward"])
def test_an_exception_on_another_rank_ends_the_step_everywhere(fault: str) -> None:
    first, second = (rank.report for rank in run_ranks(_job, 2, fault, 1, CONFIG))
    text, kind = {
        "forward": ("the third call", "ZeroDivisionError"),
        "backward": ("in a hook of the backward", "ArithmeticError"),
    }[fault]
    for name, message in (first, second):
        assert name == "StepError"
        assert message.startswith("rank 1, micro-batch ")
        assert f"{kind}: {text}" in message
        assert "Traceback (most recent call last)" in message
        assert __file__ in message, "the line of the user's module is not shown"
    if fault == "forward":
        assert "forward of 'second' for rank 0" in first[1]


@pytest.mark.parametrize("where", [0, 1])
def test_an_exception_in_the_step_function_ends_the_step_everywhere(where: int) -> None:
    reports = [rank.report for rank in run_ranks(_job, 2, "body", where, CONFIG)]
    assert reports[where] == ("LookupError", "'in the step function'") or reports[where] == (
        "LookupError",
        "in the step function",
    )
    name, message = reports[1 - where]
    assert name == "StepError"
    assert message.startswith(f"rank {where}, micro-batch ")
    assert "the step function: LookupError: in the step function" in message


def test_a_rank_that_is_killed_is_named() -> None:
    first = run_ranks(_job, 2, "killed", 1, CONFIG, may_fail=[1])[0]
    name, message = first.report
    assert name == "PeerLostError"
    assert message.startswith("rank 1 is gone")


def test_a_failure_ends_the_step_in_all_replicas() -> None:
    reports = [rank.report for rank in run_ranks(_job, 4, "body", 3, CONFIG)]
    assert reports[3][0] == "LookupError"
    for name, message in reports[:3]:
        assert name == "StepError", message
        assert "rank 3, micro-batch " in message
        assert "LookupError: in the step function" in message


def test_a_killed_rank_ends_the_step_in_all_replicas() -> None:
    ranks = run_ranks(_job, 4, "killed_last", 3, CONFIG, may_fail=[3], limit=60)
    for rank in ranks[:3]:
        name, message = rank.report
        assert name == "PeerLostError", message
        assert "rank 3 is gone" in message


def test_the_table_of_waiting_calls() -> None:
    ranks = run_ranks(_job, 2, "silent", 1, CONFIG, env={"SMP_WATCHDOG_SECONDS": "1"})
    assert [rank.report for rank in ranks] == [("nothing", "")] * 2
    assert re.search(r"^rank 0: step 1: nothing has moved for \d+ s$", ranks[0].stdout, re.MULTILINE)
    assert "'second' on rank 1" in ranks[0].stdout


def test_a_silent_step_is_ended() -> None:
    env = {"SMP_WATCHDOG_SECONDS": "0.5", "SMP_STEP_TIMEOUT_SECONDS": "1"}
    for rank in run_ranks(_job, 2, "silent", 1, CONFIG, env=env):
        name, message = rank.report
        assert name == "StepTimeoutError"
        assert "SMP_STEP_TIMEOUT_SECONDS=1" in message


def _again(delay: float) -> list[str]:
    """Fail on both ranks at once, several times; one rank is late. Return what each step ended with."""
    import smdistributed.modelparallel.torch as smp

    smp.init(CONFIG)
    net = Net("")
    smp.set_partition(net.second, 1)
    model = smp.DistributedModel(net)

    @smp.step
    def train(model: Any, x: torch.Tensor, wrong: bool) -> torch.Tensor:
        loss = model(x)
        if wrong:
            time.sleep(delay * smp.rank())
            raise LookupError("on both ranks")
        model.backward(loss)
        return loss

    ended = []
    for index in range(8):
        try:
            train(model, torch.ones(8, 4), index % 2 == 0)
            ended.append("well")
        except Exception as error:
            ended.append("badly" if "on both ranks" in str(error) else str(error))
        time.sleep(delay)
    return ended


@pytest.mark.parametrize("delay", [0.0, 0.2])
def test_a_step_that_failed_on_both_ranks_does_not_fail_the_next(delay: float) -> None:
    for rank in run_ranks(_again, 2, delay, limit=60):
        assert rank.report == ["badly", "well"] * 4
