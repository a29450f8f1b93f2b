"""All rules: each a pure function of what was observed and its parameters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.errors import ShoalError
from shoal.report.observed import Observed
from shoal.report.outcome import Outcome
from shoal.report.rules import balance, hardware, job, steps
from shoal.report.rules import parameters as p

__all__ = ["RULES", "Rule", "chosen", "judge"]

REPORT = "ProfilerReport"


@dataclass(frozen=True)
class Rule:
    """A rule and its defaults."""

    judge: Callable[[Observed, Any], Outcome]
    defaults: p.Parameters


RULES: dict[str, Rule] = {
    "CPUBottleneck": Rule(hardware.cpu_bottleneck, p.CPUBottleneck()),
    "IOBottleneck": Rule(hardware.io_bottleneck, p.IOBottleneck()),
    "DataLoadingBound": Rule(steps.data_loading_bound, p.DataLoadingBound()),
    "StorageThroughput": Rule(job.storage_throughput, p.StorageThroughput()),
    "StragglerRank": Rule(steps.straggler_rank, p.StragglerRank()),
    "CommunicationBound": Rule(steps.communication_bound, p.CommunicationBound()),
    "LoadBalancing": Rule(balance.load_balancing, p.LoadBalancing()),
    "GPUMemoryIncrease": Rule(hardware.gpu_memory_increase, p.GPUMemoryIncrease()),
    "SmallSharedMemory": Rule(job.small_shared_memory, p.NoParameters()),
    "Dataloader": Rule(steps.dataloader, p.Dataloader()),
    "StepOutlier": Rule(steps.step_outlier, p.StepOutlier()),
    "MaxInitializationTime": Rule(steps.max_initialization_time, p.MaxInitializationTime()),
    "LowGPUUtilization": Rule(hardware.low_gpu_utilization, p.LowGPUUtilization()),
    "BatchSize": Rule(hardware.batch_size, p.BatchSize()),
    "SingleHost": Rule(job.single_host, p.NoParameters()),
    "ModuleListInSequence": Rule(job.module_list_in_sequence, p.NoParameters()),
    "OverallSystemUsage": Rule(job.overall_system_usage, p.NoParameters()),
}


def chosen(description: Mapping[str, Any], patience: float | None = None) -> dict[str, p.Parameters]:
    """Return the rules that a job's ProfilerRuleConfigurations name, with their parameters; all if they name none.

    `ProfilerReport` stands for all; its parameters are called `<rule>_<parameter>`. `patience` replaces that
    of each rule whose patience the job does not set.

    Raises:
        ShoalError: no such rule, or no such parameter.
    """
    named: dict[str, dict[str, str]] = {}
    for entry in description.get("ProfilerRuleConfigurations") or []:
        given = {key: str(value) for key, value in (entry.get("RuleParameters") or {}).items()}
        name = given.pop("rule_to_invoke", entry.get("RuleConfigurationName", ""))
        if name == REPORT:
            for rule in RULES:
                named.setdefault(rule, {})
            for key, text in given.items():
                rule, _, parameter = key.partition("_")
                named[_known(rule)][parameter] = text
        else:
            named.setdefault(_known(name), {}).update(given)
    parameters = {}
    for rule in named or RULES:
        given = named.get(rule, {})
        if patience is not None and hasattr(RULES[rule].defaults, "patience"):
            given = {"patience": str(patience), **given}
        parameters[rule] = RULES[rule].defaults.changed(rule, given)
    return parameters


def _known(rule: str) -> str:
    if rule not in RULES:
        raise ShoalError(f"ProfilerRuleConfigurations: no rule {rule!r}: there are {', '.join(RULES)} and {REPORT}")
    return rule


def judge(seen: Observed, parameters: Mapping[str, p.Parameters]) -> list[Outcome]:
    """Return what each rule says; OverallSystemUsage is always asked, for its table."""
    asked = {"OverallSystemUsage": RULES["OverallSystemUsage"].defaults, **parameters}
    return [RULES[rule].judge(seen, asked[rule]) for rule in RULES if rule in asked]
