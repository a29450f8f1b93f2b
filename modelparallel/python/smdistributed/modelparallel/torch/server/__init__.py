"""The module server: pipeline parallelism at module granularity. `start` is called by smp.init."""

from __future__ import annotations

import atexit
import os
import socket

import torch

from .. import comm
from ..exceptions import PeerLostError
from ..state import state
from ..topology import CommGroup
from .host_memory import return_large_blocks
from .inlet import Inlet
from .link import Link
from .mesh import Mesh
from .server import Server, Settings

__all__ = ["Server", "start"]

_CONNECT_SECONDS = 300.0
SILENCE_VARIABLE = "SMP_WATCHDOG_SECONDS"


def start() -> Server:
    """Connect this rank to the other ranks of its pipeline, and return its server.

    Raises:
        PeerLostError: another rank has ended, or cannot be reached.
    """
    launch, topology, cfg = state.launch, state.topology, state.cfg
    ranks = topology.members(CommGroup.PP_GROUP, launch.rank)
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    silence = float(os.environ.get(SILENCE_VARIABLE, "60"))
    settings = Settings(
        ranks.index(launch.rank), len(ranks), launch.rank, cfg.pipeline, cfg.active_microbatches, device, silence
    )
    server = Server(settings, ranks, Inlet(spins=launch.local_size <= _cores()))
    if len(ranks) > 1 and device.type == "cpu" and cfg.optimize == "memory":
        return_large_blocks()
    leaders = [rank for rank in range(topology.size) if topology.coordinates(rank).pp == 0]
    alarms = _alarm_peers(launch.rank, leaders)
    if len(ranks) > 1 or alarms:
        sockets = _connect("calls", {*ranks, *alarms})
        pipeline = {
            ranks.index(peer): Link(sockets[peer], ranks.index(peer), device, server.received, server.lost)
            for peer in ranks
            if peer != launch.rank
        }
        relay = server.relay
        replicas = {
            peer: Link(sockets[peer], peer, device, relay.received_alarm, relay.lost_replica) for peer in alarms
        }
        server.attach(pipeline, replicas)
        atexit.register(server.close)
    _agree_on_order(server)
    return server


def _cores() -> int:
    """Return how many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _connect(purpose: str, peers: set[int]) -> dict[int, socket.socket]:
    """Return a connection to each of the peers; every rank of the job calls this, with its own."""
    mesh = Mesh(state.launch.rank, state.launch.master_addr)
    # Not over the store of torch.distributed: whoever waits there for a rank that has died waits for its time limit.
    addresses = comm.allgather(mesh.address)
    try:
        return mesh.connect(peers, addresses, _CONNECT_SECONDS)
    except OSError as error:
        ranks = ", ".join(map(str, sorted(peers - {state.launch.rank})))
        raise PeerLostError(
            f"smp.init: no connection for {purpose} to one of the ranks {ranks}: {error}: see their output, and that "
            "hosts can reach one another"
        ) from error


def _agree_on_order(server: Server) -> None:
    """Let this rank's tasks run in the order of its replicas, where they must, or where the user wants it.

    They must where a task runs collectives with other ranks: with tensor parallelism. deterministic_server: all
    replicas.
    """
    cfg, launch = state.cfg, state.launch
    if server.settings.pp_size == 1:
        return
    if not cfg.deterministic_server and cfg.tensor_parallel_degree == 1:
        return
    kind = CommGroup.DP_GROUP if cfg.deterministic_server else CommGroup.TP_GROUP
    members = state.topology.members(kind, launch.rank)
    if len(members) == 1:
        return
    leads = launch.rank == members[0]
    peers = set(members[1:] if leads else members[:1])
    device = torch.device("cpu")
    links = {
        peer: Link(sock, peer, device, server.received_order, server.lost_order)
        for peer, sock in _connect("order", peers).items()
    }
    server.attach_order(links, leads)


def _alarm_peers(rank: int, leaders: list[int]) -> list[int]:
    """Return whom a rank tells of a failure beyond its own pipeline: the first leader knows all leaders, they know it.

    A leader is the first rank of a pipeline. So a failure reaches every rank in four hops, and a job needs few sockets.
    """
    if rank not in leaders:
        return []
    return leaders[1:] if rank == leaders[0] else leaders[:1]
