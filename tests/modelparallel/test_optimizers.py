"""The optimizers under apex's names, each against its published formula written once more, or against torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from smdistributed.modelparallel.torch import optimizers
from smdistributed.modelparallel.torch.exceptions import SMPUnsupportedError
from smp_jobs import run_ranks
from torch import nn

SHAPES = [(5, 3), (4,), (2, 2, 2)]


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in SHAPES]


def gradients(step: int, scale: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(step + 1)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) * scale for shape in SHAPES]


def run(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], steps: int = 5) -> list[torch.Tensor]:
    owned = parameters()
    optimizer = make(owned)
    for step in range(steps):
        for parameter, grad in zip(owned, gradients(step), strict=True):
            parameter.grad = grad
        optimizer.step()
    return [parameter.detach() for parameter in owned]


@pytest.mark.parametrize("decoupled", [True, False])
def test_fused_adam_is_torch_adam(decoupled: bool) -> None:
    options: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.2, "betas": (0.8, 0.9)}
    expected = run(lambda owned: (torch.optim.AdamW if decoupled else torch.optim.Adam)(owned, **options))
    found = run(lambda owned: optimizers.FusedAdam(owned, adam_w_mode=decoupled, **options))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def lamb(steps: int, decay: float, limit: float, averaging: bool) -> list[torch.Tensor]:
    """Algorithm 2 of arXiv 1904.00962 with bias correction, gradients scaled to a global norm first."""
    weights = [parameter.detach().clone() for parameter in parameters()]
    first = [torch.zeros_like(one) for one in weights]
    second = [torch.zeros_like(one) for one in weights]
    for step in range(steps):
        grads = gradients(step)
        norm = torch.sqrt(sum(((grad * grad).sum() for grad in grads), torch.zeros((), dtype=torch.float64)))
        for index, weight in enumerate(weights):
            grad = grads[index] * torch.clamp(limit / norm, max=1.0)
            first[index] = 0.9 * first[index] + (0.1 if averaging else 1.0) * grad
            second[index] = 0.999 * second[index] + 0.001 * grad * grad
            m_hat = first[index] / (1 - 0.9 ** (step + 1))
            v_hat = second[index] / (1 - 0.999 ** (step + 1))
            update = m_hat / (v_hat.sqrt() + 1e-6) + decay * weight
            trust = weight.norm() / update.norm() if decay else 1.0
            weights[index] = weight - 0.01 * trust * update
    return weights


@pytest.mark.parametrize(("decay", "limit", "averaging"), [(0.1, 1.0, True), (0.0, 100.0, False), (0.1, 100.0, True)])
def test_lamb_is_its_paper(decay: float, limit: float, averaging: bool) -> None:
    found = run(
        lambda owned: optimizers.FusedLAMB(
            owned, lr=0.01, weight_decay=decay, max_grad_norm=limit, grad_averaging=averaging
        )
    )
    for one, other in zip(found, lamb(5, decay, limit, averaging), strict=True):
        torch.testing.assert_close(one, other)


def novograd(steps: int, decay: float, inside: bool, zero: bool) -> list[torch.Tensor]:
    """Algorithm 1 of arXiv 1905.11286, with Adam's bias corrections."""
    weights = [parameter.detach().clone() for parameter in parameters()]
    moments = [torch.zeros_like(one) for one in weights]
    seconds = [0.0 if zero else float(grad.norm() ** 2) for grad in gradients(0)]
    for step in range(steps):
        for index, grad in enumerate(gradients(step)):
            seconds[index] = 0.9 * seconds[index] + 0.1 * float(grad.norm() ** 2)
            scaled = grad / ((seconds[index] / (1 - 0.9 ** (step + 1))) ** 0.5 + 1e-8)
            if inside:
                scaled = scaled + decay * weights[index]
            moments[index] = 0.8 * moments[index] + 0.2 * scaled
            update = moments[index] / (1 - 0.8 ** (step + 1))
            if not inside:
                update = update + decay * weights[index]
            weights[index] = weights[index] - 0.01 * update
    return weights


@pytest.mark.parametrize(("decay", "inside", "zero"), [(0.1, False, False), (0.1, True, False), (0.0, False, True)])
def test_novograd_is_its_paper(decay: float, inside: bool, zero: bool) -> None:
    found = run(
        lambda owned: optimizers.FusedNovoGrad(
            owned, lr=0.01, betas=(0.8, 0.9), weight_decay=decay, reg_inside_moment=inside, init_zero=zero
        )
    )
    for one, other in zip(found, novograd(5, decay, inside, zero), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", [optimizers.FusedAdam, optimizers.FusedLAMB, optimizers.FusedNovoGrad])
def test_state_resumes_and_gradients_are_freed(kind: Any) -> None:
    whole = run(lambda owned: kind(owned, lr=0.01), 4)
    owned = [nn.Parameter(one.clone()) for one in run(lambda given: kind(given, lr=0.01), 2)]
    before = parameters()
    first = kind(before, lr=0.01)
    for step in range(2):
        for parameter, grad in zip(before, gradients(step), strict=True):
            parameter.grad = grad
        first.step()
    second = kind(owned, lr=0.01)
    second.load_state_dict(first.state_dict())
    for step in range(2, 4):
        for parameter, grad in zip(owned, gradients(step), strict=True):
            parameter.grad = grad
        second.step()
    for one, other in zip(owned, whole, strict=True):
        torch.testing.assert_close(one.detach(), other)
    second.zero_grad()
    assert all(parameter.grad is None for parameter in owned)


def test_what_is_not_offered_is_refused() -> None:
    with pytest.raises(SMPUnsupportedError, match="FusedAdam does not know amsgrad=True: use"):
        optimizers.FusedAdam(parameters(), amsgrad=True)
    with pytest.raises(SMPUnsupportedError, match="FusedLAMB has no AMSGrad variant"):
        optimizers.FusedLAMB(parameters(), amsgrad=True)
    with pytest.raises(ValueError, match="norm_type is 3: it must be 2, or infinity"):
        optimizers.FusedNovoGrad(parameters(), norm_type=3)
    assert optimizers.FusedLamb is optimizers.FusedLAMB


def norm_over_ranks() -> list[torch.Tensor]:
    import smdistributed.modelparallel.torch as smp

    smp.init()
    owned = parameters()
    mine = owned[:1] if smp.rank() == 0 else owned[1:]
    optimizer = smp.optimizers.FusedLAMB(mine, lr=0.01, weight_decay=0.1)
    for step in range(5):
        for parameter, grad in zip(owned, gradients(step), strict=True):
            parameter.grad = grad
        optimizer.step()
    return [parameter.detach() for parameter in mine]


def test_lamb_scales_by_the_norm_over_partitions() -> None:
    """C8 and statement 16: each rank has some parameters, the norm is that of all."""
    first, second = run_ranks(norm_over_ranks, 2, config='{"partitions": 2}')
    for one, other in zip([*first.report, *second.report], lamb(5, 0.1, 1.0, True), strict=True):
        torch.testing.assert_close(one, other)


def dumped(path: str) -> list[str]:
    import smdistributed.modelparallel.torch as smp
    from smdistributed.modelparallel.test.torch.utils import dump_model, verify
    from smdistributed.modelparallel.torch.utils import rmsg

    smp.init()
    model = smp.DistributedModel(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    dump_model(model, path)
    verify(model, path)
    with torch.no_grad():
        next(model.local_parameters()).add_(1.0)
    try:
        verify(model, path)
    except AssertionError as error:
        return [rmsg("here"), str(error)]
    return ["equal"]


def test_helpers_that_scripts_import(tmp_path: Any) -> None:
    path = str(tmp_path / "model.pt")
    assert run_ranks(dumped, 1, path)[0].report == ["[rank 0] here", f"the model differs from {path} in 0.weight"]
