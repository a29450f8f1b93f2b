"""What ranks of one model say to one another; tensors travel beside a message (see link.py)."""

from __future__ import annotations

from typing import NamedTuple, Tuple

from .ambient import Ambient
from .failures import Failure
from .tasks import Label

# Modules that run one after another, each with the output of the one before: (pp rank, their names), ...
Chain = Tuple[Tuple[int, Tuple[str, ...]], ...]


class Forward(NamedTuple):
    """Run the modules of `chain[segment]`, then send the output on, or back to `origin` after the last."""

    step: int
    label: Label
    origin: int
    ambient: Ambient
    chain: Chain
    segment: int
    blob: bytes


class Backward(NamedTuple):
    """Gradients of some outputs of the forward `label`, of one segment of its chain: `which` numbers the outputs."""

    step: int
    label: Label
    origin: int
    segment: int
    which: tuple[int, ...]


class Reply(NamedTuple):
    """The answer to the call `label`: the inputs' gradients, numbered by `which`, or a forward's outputs.

    Of a forward `which` numbers the inputs that it changed in place; their new values follow the outputs.
    """

    step: int
    label: Label
    blob: bytes
    which: tuple[int, ...]


class Failed(NamedTuple):
    """The call `label` raised."""

    step: int
    label: Label
    failure: Failure


class Output(NamedTuple):
    """What the model returned on pp rank 0 in pass `number` of a micro-batch, for the other ranks' bodies."""

    step: int
    microbatch: int
    number: int
    blob: bytes


class MicrobatchDone(NamedTuple):
    """Nothing more is asked for this micro-batch: what was saved for its backward may go."""

    step: int
    microbatch: int


class BodiesDone(NamedTuple):
    """All bodies of the step ended on the rank that says so."""

    step: int


class StepEnd(NamedTuple):
    """Pp rank 0: every rank has ended its bodies, and every request is answered."""

    step: int


class Abort(NamedTuple):
    """The step failed: end it."""

    step: int
    failure: Failure


class Farewell(NamedTuple):
    """The sender ends in good order, after so many steps; its connection closes next."""

    rank: int
    steps: int
