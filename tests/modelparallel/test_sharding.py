"""Sharded data parallelism (statement 40): parameters divided over ranks, the training of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from smp_jobs import run_ranks
from torch import nn

CONFIG = '{"ddp": true, "microbatches": 2, "sharded_data_parallel_degree": %d, "sdp_param_persistence_threshold": 60%s}'
CLIP = ', "sdp_gradient_clipping": 0.3'


class Net(nn.Module):
    """Layers in a list, as transformers have them, with odd sizes: 7 rows do not divide."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(6, 16)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 7), nn.Tanh(), nn.Linear(7, 16)) for _ in range(2))
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = x + layer(x)
        found: torch.Tensor = self.head(x)
        return found


def batches(count: int, begin: int = 0) -> list[torch.Tensor]:
    return [torch.randn(16, 6, generator=torch.Generator().manual_seed(begin + one)) for one in range(count)]


def alone(steps: int) -> dict[str, torch.Tensor]:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for batch in batches(steps):
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
    return model.state_dict()


class Job:
    def __init__(self, **options: Any) -> None:
        import smdistributed.modelparallel.torch as smp

        smp.init()
        self.smp = smp
        plain = Net().to(options.get("dtype"))
        built = torch.optim.AdamW(plain.parameters(), lr=0.01)
        self.model = smp.DistributedModel(plain)
        if smp.tp_size() > 1:  # it has made new parameters
            built = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.optimizer = smp.DistributedOptimizer(built)

        @smp.step
        def train(model: Any, batch: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = model(batch).pow(2).mean()
            model.backward(loss)
            return loss

        self.train = train

    def run(self, steps: int, begin: int = 0) -> None:
        for batch in batches(steps, begin):
            self.optimizer.zero_grad()
            self.train(self.model, batch.chunk(self.smp.dp_size())[self.smp.dp_rank()])
            self.optimizer.step()

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}


def local_elements(tensors: Any) -> int:
    return sum(one.to_local().numel() if hasattr(one, "to_local") else one.numel() for one in tensors)


def trained() -> dict[str, Any]:
    job = Job()
    job.run(4)
    state = [one for values in job.optimizer.state.values() for one in values.values() if one.dim()]
    return {
        "weights": job.weights(),
        "whole": [name for name, one in job.model.local_named_parameters() if not hasattr(one, "to_local")],
        "parameters": local_elements(job.model.local_parameters()),
        "state": local_elements(state),
        "full": job.optimizer.state_dict(),
        "local": job.optimizer.local_state_dict(gather_if_shard=False),
    }


@pytest.mark.parametrize(("size", "degree"), [(2, 2), (4, 2)])
def test_shards_train_as_one_process(size: int, degree: int) -> None:
    """Statement 40; gradients are clipped inside optimizer.step()."""
    expected = alone(4)
    reports = [one.report for one in run_ranks(trained, size, config=CONFIG % (degree, CLIP))]
    for report in reports:
        assert report["weights"].keys() == expected.keys()
        for name, value in expected.items():
            assert torch.allclose(report["weights"][name], value, rtol=1e-4, atol=1e-6), name
        # Biases have fewer elements than the threshold.
        assert report["whole"] == [name for name in expected if name.endswith("bias")]
        assert report["state"] == 2 * report["parameters"]
        assert len(report["full"]["state"]) == len(expected)
        plain = torch.optim.AdamW(Net().parameters())
        plain.load_state_dict(report["full"])
    large = sum(value.numel() for name, value in expected.items() if name.endswith("weight"))
    small = sum(value.numel() for name, value in expected.items() if name.endswith("bias"))
    assert sum(report["parameters"] for report in reports) == size * small + size // degree * large
    # Of 7 rows one rank has 4, the other 3.
    assert reports[0]["local"]["state"][2]["_smp_piece"] == (0, 4 * 16, 7 * 16)
    assert reports[1]["local"]["state"][2]["_smp_piece"] == (4 * 16, 7 * 16, 7 * 16)


def resumed(partial: bool) -> list[dict[str, torch.Tensor]]:
    import copy

    job = Job()
    job.run(2)
    weights = job.weights()
    optimizer = job.optimizer
    saved = copy.deepcopy(optimizer.local_state_dict(gather_if_shard=False) if partial else optimizer.state_dict())
    job.run(2, begin=2)
    job.smp.state.model = None
    job.smp.state.after_backward.clear()
    again = Job()
    again.model.load_state_dict(weights)
    again.optimizer.load_state_dict(saved, gather_if_shard=not partial)
    again.run(2, begin=2)
    return [job.weights(), again.weights()]


@pytest.mark.parametrize("partial", [True, False])
def test_shards_resume_bit_equal(partial: bool) -> None:
    for one in run_ranks(resumed, 2, partial, config=CONFIG % (2, CLIP)):
        through, again = one.report
        assert all(torch.equal(through[name], again[name]) for name in through)


def half() -> dict[str, Any]:
    job = Job(dtype=torch.bfloat16)
    job.run(4)
    output = job.model(batches(1)[0])
    return {
        "weights": job.weights(),
        "output": output.dtype,
        "dtypes": {one.dtype for one in job.model.local_parameters() if hasattr(one, "to_local")},
    }


def test_shards_of_half_precision_models_are_float32() -> None:
    """The shards are the master weights; outputs come back in float32."""
    expected = alone(4)
    for one in run_ranks(half, 2, config=CONFIG % (2, CLIP + ', "bf16": true')):
        assert one.report["output"] == torch.float32
        assert one.report["dtypes"] == {torch.float32}
        for name, value in expected.items():
            assert torch.allclose(one.report["weights"][name].float(), value, atol=0.02), name


def scaled() -> dict[str, Any]:
    import smdistributed.modelparallel.torch as smp

    job = Job()
    scaler = smp.amp.GradScaler(init_scale=64.0)

    @smp.step
    def train(model: Any, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(batch).pow(2).mean()
        model.backward(scaler.scale(loss))
        return loss

    scales = []
    # The second batch comes twice, first with an infinite sample on one rank.
    for index, spoilt in ((0, False), (1, True), (1, False), (2, False), (3, False)):
        batch = batches(4)[index].chunk(2)[smp.dp_rank()].clone()
        if spoilt and smp.rank() == 1:
            batch[0] = float("inf")
        job.optimizer.zero_grad()
        train(job.model, batch)
        scaler.step(job.optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return {"weights": job.weights(), "scales": scales}


def test_scaled_gradients_of_shards() -> None:
    """C7: all ranks leave a step out together, and clip what is no longer scaled."""
    expected = alone(4)
    for one in run_ranks(scaled, 2, config=CONFIG % (2, CLIP)):
        assert one.report["scales"] == [64, 32, 32, 32, 32]
        for name, value in expected.items():
            assert torch.allclose(one.report["weights"][name], value, rtol=1e-4, atol=1e-6), name


def by_old_names() -> dict[str, Any]:
    job = Job(dtype=torch.bfloat16)
    groups = [{"params": list(job.model.module.layers.parameters())}, {"params": [job.model.module.head.weight]}]
    # As the published clients do: where in its group's tensor each parameter begins, then the optimizer's tensors.
    names = {id(one): name for name, one in job.model.module.named_parameters()}
    places = []
    for index, group in enumerate(groups):
        offset = 0
        for one in group["params"]:
            places.append((names[id(one)], one, index, offset))
            offset += one.ds_tensor.ds_numel
    optimizer = job.smp.DistributedOptimizer(torch.optim.AdamW(groups, lr=0.01))
    found = {
        name: (one, optimizer.fp32_partitioned_groups_flat[index].narrow(0, offset, one.ds_tensor.ds_numel))
        for name, one, index, offset in places
    }
    job.optimizer = optimizer
    job.run(3)
    assert optimizer._global_grad_norm > 0
    torch.distributed.barrier(group=optimizer.ds_param_shard_group)
    parts = {name: (flat.clone(), one.ds_tensor.float(), tuple(one.ds_shape)) for name, (one, flat) in found.items()}
    return {"parts": parts, "weights": job.weights()}


def test_clients_find_their_shards_by_the_names_that_they_know() -> None:
    """`ds_tensor`, `ds_shape` and `fp32_partitioned_groups_flat`: the T5, GPT-NeoX and BLOOM clients log norms of
    them."""
    reports = [one.report for one in run_ranks(by_old_names, 2, config=CONFIG % (2, CLIP + ', "bf16": true'))]
    parts = [report["parts"] for report in reports]
    assert len(parts[0]) == 9
    for name, (flat, of_model, shape) in parts[0].items():
        weight = reports[0]["weights"][name].float()
        assert shape == weight.shape
        assert flat.dtype == torch.float32
        other_flat, other, _ = parts[1][name]
        assert torch.equal(torch.cat([of_model, other]), weight.reshape(-1)), name
        assert torch.equal(torch.cat([flat, other_flat]), weight.reshape(-1)), name


def of_slices(folder: str) -> dict[str, Any]:
    import smdistributed.modelparallel.torch as smp

    def job() -> Job:
        with smp.tensor_parallelism():
            made = Job()
        made.model.load_state_dict(Net().state_dict())
        made.optimizer = smp.DistributedOptimizer(torch.optim.AdamW(made.model.parameters(), lr=0.01))
        return made

    first = job()
    first.run(2)
    smp.save_checkpoint(folder, "two", model=first.model, optimizer=first.optimizer, user_content={"steps": 2})
    first.run(2, begin=2)
    smp.save_checkpoint(folder, "full.pt", partial=False, model=first.model)
    smp.state.model = None
    smp.state.after_backward.clear()
    second = job()
    assert smp.resume_from_checkpoint(folder, "two") == {"steps": 2}
    second.run(2, begin=2)
    return {
        "shapes": {name: tuple(one.shape) for name, one in first.model.local_named_parameters()},
        "sharded": {name for name, one in first.model.local_named_parameters() if hasattr(one, "to_local")},
        "weights": first.weights(),
        "again": second.weights(),
    }


def test_shards_of_slices_train_as_one_process(tmp_path: Path) -> None:
    """Statement 40 as of release 1.15: tensor parallelism too. Sharded and not, sliced and not, in all four ways."""
    expected = alone(4)
    config = (CONFIG % (2, CLIP + ', "tensor_parallel_degree": 2')).replace("60", "50")
    for one in run_ranks(of_slices, 4, str(tmp_path), config=config):
        assert one.report["sharded"] == {f"layers.{layer}.{at}.weight" for layer in (0, 1) for at in (0, 2)}
        # Seven channels do not divide.
        assert one.report["shapes"]["layers.0.0.weight"] == (7, 8)
        assert one.report["shapes"]["layers.0.2.weight"] == (16, 7)
        assert one.report["shapes"]["head.weight"] == (5, 8)
        for name, value in expected.items():
            assert torch.allclose(one.report["weights"][name], value, rtol=1e-4, atol=1e-6), name
            assert torch.equal(one.report["again"][name], one.report["weights"][name]), name
    saved = torch.load(tmp_path / "full.pt")
    assert all(torch.equal(saved[name], one.report["weights"][name]) for name in expected)


def whole_parameter_norms() -> str:
    import smdistributed.modelparallel.torch as smp

    smp.init()
    plain = Net()
    smp.DistributedModel(plain)
    optimizer = smp.DistributedOptimizer(smp.optimizers.FusedLAMB(plain.parameters()))
    try:
        optimizer.step()
    except smp.exceptions.SMPUnsupportedError as error:
        return str(error)
    return "accepted"


def test_an_optimizer_of_whole_parameters_is_refused() -> None:
    for one in run_ranks(whole_parameter_norms, 2, config=CONFIG % (2, "")):
        assert one.report.startswith("FusedLAMB with sharded data parallelism: a rank has parts of parameters only")


def test_units_are_layers_that_share_nothing() -> None:
    from smdistributed.modelparallel.torch.sharding import units

    model = Net()
    found = units(model)
    assert {id(one) for one in found} == {
        id(one) for layer in model.layers for one in [layer, *layer.children()] if list(one.parameters())
    }
    assert found.index(model.layers[0]) > found.index(next(model.layers[0].children()))
    model.head.weight = model.layers[1][2].weight  # type: ignore[index]
    kept = units(model)
    assert model.layers[1] not in kept
    assert model.layers[0] in kept
    assert units(model, {id(one) for one in model.parameters()}) == []
