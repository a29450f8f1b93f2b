"""Tensors on a device, with a fake one (fake_device/fake_device.cpp): docs/smddp.md says what it cannot show."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch
from rank_jobs import run_ranks

SOURCE = Path(__file__).parent / "fake_device" / "fake_device.cpp"


@pytest.fixture(scope="module")
def fake_device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The device as a Python module, compiled against the installed torch."""
    folder = Path(torch.__file__).parent
    module = tmp_path_factory.mktemp("fake_device") / "fake_device.so"
    includes = [folder / "include", folder / "include/torch/csrc/api/include", sysconfig.get_paths()["include"]]
    command = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", *(f"-isystem{include}" for include in includes)]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    command += [str(SOURCE), "-o", str(module), f"-L{folder / 'lib'}", "-ltorch_cpu", "-ltorch_python", "-lc10"]
    subprocess.run(command, check=True)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_streams_of_a_device_are_kept_in_order(fake_device: Path, size: int) -> None:
    for result in run_ranks("device", size, str(fake_device)):
        report = result.report
        assert "cannot be part of a CUDA graph" in report["graph"]
        assert "left to NCCL" in report["exchange"]
        assert "must be on one device" in report["mixed"]


@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "shard"), [("ab", 1), ("aabb", 2), ("abab", 2)])
def test_all_reduces_of_several_hosts_take_the_exchange(fake_device: Path, hosts: str, shard: int) -> None:
    for result in run_ranks("device", len(hosts), str(fake_device), "rails", hosts=hosts):
        assert result.report["crossed"] == 4000 / shard


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hosts", "setting", "more"), [("aabb", "never", ""), ("aab", "always", ""), ("ab", "auto", "rdma")]
)
def test_all_reduces_that_are_left_to_nccl(fake_device: Path, hosts: str, setting: str, more: str) -> None:
    """By a setting, where hosts have different numbers of ranks, and where NCCL has a network of its own."""
    env = {"SMDDP_GPU_EXCHANGE": setting}
    for result in run_ranks("device", len(hosts), str(fake_device), "rails", more, hosts=hosts, env=env):
        assert result.report["crossed"] == 0


@pytest.mark.slow
def test_a_neighbour_that_dies_does_not_keep_the_device(fake_device: Path) -> None:
    results = run_ranks("device", 4, str(fake_device), "rails", "death", hosts="aabb", may_fail=[3])
    for result in results[:3]:
        assert "SMDDPPeerError" in result.report["error"]
        assert "rank 3" in result.report["error"]
        assert result.report["seconds"] < 20
