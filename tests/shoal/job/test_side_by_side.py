"""The same for several hosts at once."""

import threading

import pytest

from shoal.job.side_by_side import one_ahead, side_by_side


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


def test_the_next_call_runs_while_a_result_is_used() -> None:
    called = [threading.Event() for _ in range(3)]

    def call(item: int) -> int:
        called[item].set()
        return item * 10

    results = one_ahead(call, (0, 1, 2), lambda _: None)
    assert next(results) == 0
    assert called[1].wait(30), "the second is not asked for while the first is used"
    assert not called[2].is_set(), "more than one ahead"
    assert list(results) == [10, 20]


def test_a_result_that_nobody_sees_is_discarded() -> None:
    discarded: list[int] = []
    results = one_ahead(lambda item: item, (0, 1, 2), discarded.append)
    assert next(results) == 0
    results.close()
    assert discarded == [1]


def test_a_call_that_fails_is_told_when_its_turn_comes() -> None:
    def call(item: int) -> int:
        if item == 1:
            raise ValueError("the second")
        return item

    results = one_ahead(call, (0, 1, 2), lambda _: None)
    assert next(results) == 0
    with pytest.raises(ValueError, match="the second"):
        next(results)
    assert list(one_ahead(call, (), lambda _: None)) == []
