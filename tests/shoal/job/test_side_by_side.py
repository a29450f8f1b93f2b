"""The same for several hosts at once."""

import threading

import pytest

from shoal.job.side_by_side import side_by_side


def test_calls_run_at_once_and_results_come_in_the_order_of_the_items() -> None:
    """Neither call could end alone: each waits for the other."""
    both = threading.Barrier(2, timeout=30)

    def call(item: int) -> int:
        both.wait()
        return item * 10

    assert side_by_side(call, (1, 2)) == [10, 20]


def test_the_first_error_is_raised_when_all_calls_have_ended() -> None:
    failed = threading.Event()
    ended = []

    def call(item: int) -> None:
        if item == 0:
            failed.set()
            raise ValueError("the first")
        failed.wait(30)
        ended.append(item)

    with pytest.raises(ValueError, match="the first"):
        side_by_side(call, (0, 1, 2))
    assert sorted(ended) == [1, 2]


def test_nothing_to_do() -> None:
    assert side_by_side(str, ()) == []
