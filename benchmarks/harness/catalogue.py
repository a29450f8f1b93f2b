"""All libraries that are compared, in the order in which they have their turns."""

from __future__ import annotations

from harness.mpi_peers import IntelMpi, Mpich, OneCcl, OpenMpi, OpenMpiAsSageMaker
from harness.peers import DeepSpeed, Gloo, Peer, Smddp, SmddpAgain, SmddpHalfWire

PEERS: tuple[Peer, ...] = (
    Smddp(),
    SmddpHalfWire(),
    Gloo(),
    OpenMpi(),
    OpenMpi(through_torch=True),
    OpenMpiAsSageMaker(),
    OpenMpiAsSageMaker(through_torch=True),
    SmddpAgain(),  # Far from the first in the order of turns.
    Mpich(),
    Mpich(through_torch=True),
    IntelMpi(),
    IntelMpi(through_torch=True),
    OneCcl(),
    DeepSpeed(),
)
