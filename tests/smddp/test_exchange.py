"""The exchange between hosts over real links: each host a network namespace."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from net_hosts import NetHosts, missing_tools
from rank_jobs import Rank, run_ranks

pytestmark = pytest.mark.skipif(bool(missing_tools()), reason=f"hosts need {', '.join(missing_tools())}")

# Half the distance between 1 and the next number.
UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


def run_on(net: NetHosts, each: int, *arguments: str, env: Mapping[str, str] | None = None) -> list[Rank]:
    """`each` ranks on every host."""
    hosts = "".join("abcdefgh"[host] * each for host in range(len(net.namespaces)))
    common = {"MASTER_ADDR": "10.97.0.1", "SMDDP_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0"}
    return run_ranks(
        "exchange",
        len(hosts),
        *arguments,
        hosts=hosts,
        env=common | dict(env or {}),
        prefix=lambda rank: net.enter(rank // each),
    )


@pytest.mark.parametrize(
    ("hosts", "each", "env"),
    [
        (2, 1, {}),
        (3, 1, {"SMDDP_NET_ONE_SHOT_BYTES": "0", "SMDDP_STREAMS": "3"}),
        (5, 1, {"SMDDP_NET_RELAY": "always"}),
        (4, 1, {"SMDDP_NET_RELAY": "always"}),
        (4, 1, {"SMDDP_NET_RELAY": "never"}),
        (2, 2, {}),
        (
            2,
            2,
            {"SMDDP_NET_BLOCK_BYTES": "65536", "SMDDP_NET_PIECE_BYTES": "8192", "SMDDP_SOCKET_BUFFER_BYTES": "8192"},
        ),
    ],
    ids=["pair", "streams", "relayed", "doubled", "four", "two-by-two", "short-writes"],
)
def test_sums_are_the_definitions_bits(hosts: int, each: int, env: dict[str, str]) -> None:
    with NetHosts(hosts, rate="2gbit") as net:
        for result in run_on(net, each, "operations", env=env):
            assert result.report["path"].startswith("hierarchical" if each > 1 else "flat")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("each", [1, 2])
def test_a_16_bit_wire_keeps_its_bound(dtype: str, each: int) -> None:
    with NetHosts(2) as net:
        for result in run_on(net, each, "operations", env={"SMDDP_WIRE_DTYPE": dtype}):
            assert 1e-5 < result.report["error"] <= 2.1 * UNIT[dtype]


def test_a_16_bit_wire_sends_half() -> None:
    sent = {}
    for dtype in ("float32", "bfloat16"):
        with NetHosts(2) as net:
            before = net.sent(0)
            run_on(net, 2, "volume", str(4 << 20), env={"SMDDP_WIRE_DTYPE": dtype})
            sent[dtype] = net.sent(0) - before
    # 16 MiB over two hosts: 2(M-1)/M B = 16 MiB from each; TCP and the rendezvous add little.
    assert 1.0 <= sent["float32"] / (16 << 20) < 1.15
    assert sent["bfloat16"] / sent["float32"] < 0.56


def test_error_feedback_loses_nothing_over_time() -> None:
    errors = {}
    for feedback in ("0", "1"):
        with NetHosts(2) as net:
            env = {"SMDDP_WIRE_DTYPE": "bfloat16", "SMDDP_WIRE_ERROR_FEEDBACK": feedback}
            errors[feedback] = run_on(net, 2, "mean", "50", env=env)[0].report["error"]
    assert errors["0"] > 1e-3
    assert errors["1"] < errors["0"] / 10


def test_a_group_of_its_own_overtakes() -> None:
    # 32 MiB of sums take more than a second on this link; the gather takes milliseconds.
    with NetHosts(2, rate="200mbit") as net:
        assert all(result.report["overtook"] for result in run_on(net, 1, "overtaking"))
