"""`benchmarks/ddp.py` as a user starts it, and what it makes of what it measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.ddp import NETWORKS, SCALING, link_bound, step_bound
from harness.ddp_page import ddp_claims, ddp_section

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "ddp.py"
RATE = 119e6


def finished(*arguments: str, cache: Path) -> tuple[int, list[str], str]:
    argv = [sys.executable, str(SCRIPT), "--cache", str(cache), "--wait", "0", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=280)
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.usefixtures("_hosts")
def test_a_computed_network_on_two_hosts(cache: Path) -> None:
    words = ["--part", "seven-layer", "--rounds", "1", "--peers", "gloo,openmpi", "--json"]
    code, out, err = finished(*words, cache=cache)
    assert code == 0, err
    assert len(out) == 1
    part = json.loads(out[0])["parts"][0]
    layout = part["layouts"][0]
    assert layout["layout"] == "2x2@1gbit"
    assert layout["absent"] == layout["failed"] == layout["wrong"] == {}
    assert list(layout["libraries"]) == ["smddp", "gloo", "openmpi"]
    for times in layout["libraries"].values():
        exposed = times["step_seconds"] - times["without_synchronisation_seconds"]
        assert times["exposed_seconds"] == pytest.approx(exposed, abs=1e-5)
        assert times["cpu_seconds"] > 0
    assert layout["communication_bound_seconds"] > part["gradient_bytes"] * 8 / 1e9
    assert [claim["what"] for claim in json.loads(out[0])["claims"]] == [
        "seven-layer: gloo / smddp, time of a step",
        "seven-layer: openmpi / smddp, time of a step",
    ]


@pytest.mark.usefixtures("_hosts")
def test_scaling(cache: Path) -> None:
    code, out, err = finished("--part", "scaling", "--hosts", "2", "--rounds", "1", "--peers", "gloo", cache=cache)
    assert code == 0, err
    layouts = json.loads(out[-1])["parts"][0]["layouts"]
    assert [layout["layout"] for layout in layouts] == ["1x1", "2x1@1gbit"]
    for layout in layouts:
        assert list(layout["libraries"]) == ["smddp", "gloo"]
        # Sleeping takes at least what it was asked for, and no step beats its bound.
        assert all(times["step_seconds"] >= 0.9 for times in layout["libraries"].values())
    assert any("efficiency" in line for line in out)


def test_a_run_that_measured_nothing_has_failed(cache: Path) -> None:
    words = ["--part", "scaling", "--hosts", "1", "--rounds", "1", "--peers", "smddp"]
    code, out, err = finished(*words, "--set", "SMDDP_WIRE_DTYPE=float8", cache=cache)
    assert (code, json.loads(out[-1])["parts"][0]["layouts"][0]["libraries"]) == (1, {})
    assert "benchmarks/ddp.py: nothing was measured" in err.splitlines()[-1]


def a_layout(hosts: int, smddp: float, bound: float) -> dict[str, Any]:
    name = f"{hosts}x1@1gbit" if hosts > 1 else "1x1"
    times = {"step_seconds": smddp, "cpu_seconds": 0.1}
    nothing: dict[str, str] = {}
    common = {"absent": nothing, "failed": nothing, "wrong": nothing, "communication_bound_seconds": 0.1}
    return {"layout": name, "step_bound_seconds": bound, "libraries": {"smddp": times, "gloo": times}, **common}


def a_part(eight: dict[str, Any]) -> dict[str, Any]:
    common = {"title": "t", "gradient_bytes": 24e6, "bucket_megabytes": 4, "batch": 0, "slept_seconds": [0.3, 0.6]}
    return {"part": "scaling", "layouts": [a_layout(1, 0.9, 0.9), eight], **common}


def test_efficiency_is_promised_only_where_the_link_allows_it() -> None:
    assert [claim["holds"] for claim in ddp_claims(a_part(a_layout(8, 0.97, 0.95)))] == [True]
    assert [claim["holds"] for claim in ddp_claims(a_part(a_layout(8, 1.10, 0.95)))] == [False]
    assert ddp_claims(a_part(a_layout(8, 1.10, 1.05))) == []
    section = ddp_section(a_part(a_layout(8, 1.0, 0.95)))
    assert "| 8 | 1000 ms | 1000 ms | 0.900 | 0.900 | 0.947 |" in section


def test_bounds() -> None:
    model = NETWORKS["seven-layer"]
    assert model.gradient_bytes == 4 * 6_062_090
    assert NETWORKS["resnet18"].gradient_bytes == 4 * 11_689_512
    assert link_bound(model, 2, RATE) == pytest.approx(model.gradient_bytes / RATE)
    assert link_bound(model, 4, RATE) == pytest.approx(1.5 * model.gradient_bytes / RATE)
    # A fast link leaves the computation; a slow one waits only until the last big layer has its gradients.
    assert step_bound(SCALING, 8, 1e15) == pytest.approx(0.9)
    slow = link_bound(SCALING, 8, 1e6) + SCALING.forward_seconds
    assert slow < step_bound(SCALING, 8, 1e6) < slow + SCALING.share(SCALING.backward_seconds, 5) + 0.01
    # The first layer's gradients come last, and nothing hides their way.
    tail = 2 * 7 / 8 * SCALING.layer_sizes[0] / RATE
    assert step_bound(SCALING, 8, RATE) == pytest.approx(0.9 + tail)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--part", "vgg"], "--part: 'vgg' is none of seven-layer, resnet18, scaling"),
        (["--peers", "nccl"], "--peers: 'nccl' is none of smddp, smddp-bf16, gloo, openmpi"),
        (["--hosts", "0"], "--hosts: '0' is not a list of numbers from 1 to 16"),
        (["--rounds", "0"], "--rounds: 0 is less than 1"),
        (["--output", "/no/such/file"], "--output: '/no/such/file' cannot be written (No such file or directory)"),
        (["--wait", "-1"], "--wait: '-1' is no number of seconds from 0"),
    ],
)
def test_bad_input_is_one_clear_line(arguments: list[str], message: str, cache: Path) -> None:
    code, out, err = finished(*arguments, cache=cache)
    assert (code, out) == (2, [])
    assert message in err.splitlines()[-1]
