"""`decide`: a rank for every module, from the configuration, marks set by hand, a trace, or an earlier decision."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from torch import nn

from ..config import Config
from . import decision
from .advice import advice
from .algorithm import place
from .manual import placed_by_hand
from .records import Trace
from .tree import Tree, build

logger = logging.getLogger("smdistributed.modelparallel")


@dataclass(frozen=True)
class Decision:
    """A decision and what it was made from; tree is what automatic placement weighs, also where it did not decide."""

    module: nn.Module
    trace: Trace | None
    cfg: Config
    tree: Tree
    ranks: dict[str, int]


_latest: Decision | None = None


def latest(module: nn.Module) -> Decision | None:
    """What `decide` decided for module last, if it did so in this process."""
    return _latest if _latest is not None and _latest.module is module else None


def decide(module: nn.Module, trace: Trace | None, cfg: Config) -> dict[str, int]:
    """The pp rank of every module of `module`, by qualified name; '' is module itself, all names of one are listed.

    trace: what `trace()` returned; None places by parameters, in the order of declaration. cfg: read are
    pipeline_parallel_degree, auto_partition, default_partition, memory_weight, active_microbatches, microbatches,
    load_partition and partition_file. A decision set by `reuse` wins over all of them.

    Without times in the trace the result depends on the model and the shapes of its inputs only. Raises SMPConfigError
    for a partition_file that does not fit the model, SMPValueError for marks that divide what has to stay together.
    Automatic placement logs what is wrong with it as warnings: advice.py.
    """
    global _latest
    _latest = decide_with(module, trace, cfg)
    if cfg.partition_file and not cfg.load_partition:
        decision.write(cfg.partition_file, decision.encoded(_latest.ranks, module, cfg.pipeline_parallel_degree))
    if cfg.auto_partition and cfg.pipeline_parallel_degree > 1:
        for sentence in advice(module, trace, _latest.tree, _latest.ranks, cfg.pipeline_parallel_degree):
            logger.warning("%s", sentence)
    return dict(_latest.ranks)


def decide_with(module: nn.Module, trace: Trace | None, cfg: Config) -> Decision:
    """Decides without remembering, writing or saying anything."""
    devices = cfg.pipeline_parallel_degree
    tree = cost_tree(module, trace, cfg)
    document = decision.pending()
    if document is None and cfg.load_partition and cfg.partition_file:
        document = decision.read(cfg.partition_file)
    if document is not None:
        ranks = decision.decoded(document, module, devices)
    elif devices == 1:
        ranks = {name: 0 for name, _ in module.named_modules()}
    elif not cfg.auto_partition:
        ranks = placed_by_hand(module, cfg.default_partition)
    else:
        ranks = ranks_of(tree, devices)
    return Decision(module, trace, cfg, tree, with_aliases(module, ranks))


def cost_tree(module: nn.Module, trace: Trace | None, cfg: Config) -> Tree:
    """The tree of parts and costs on which automatic placement decides under cfg."""
    live = min(cfg.active_microbatches, cfg.microbatches)
    return build(module, trace, cfg.memory_weight, live)


def ranks_of(tree: Tree, devices: int) -> dict[str, int]:
    """The rank of every module of the tree: that of the part it runs with."""
    plan = place(tree, devices)
    return {name: plan[part] for name, part in tree.anchor.items()}


def with_aliases(module: nn.Module, ranks: dict[str, int]) -> dict[str, int]:
    """ranks, with the names added under which a module occurs a second time."""
    first = {id(each): name for name, each in module.named_modules()}
    return {name: ranks[first[id(each)]] for name, each in module.named_modules(remove_duplicate=False)}
