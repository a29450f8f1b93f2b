"""Each rule on the scenarios that the original was run on (2000 points, 2 GPUs, 4 cores), and on those it got wrong."""

import math
from typing import Any

import numpy as np
import pytest
from report_samples import BEGAN, host, observed, ranks, spread, step

from shoal.errors import ShoalError
from shoal.report.observed import Observed
from shoal.report.outcome import Outcome, intervals
from shoal.report.rules import RULES, chosen, judge
from shoal.report.rules.balance import distance


def said(seen: Observed, rule: str, **parameters: float) -> Outcome:
    defaults = RULES[rule].defaults
    return RULES[rule].judge(seen, defaults.changed(rule, {name: str(value) for name, value in parameters.items()}))


def bound(percent: int, cores: int, **options: Any) -> Observed:
    """Return a host whose GPUs wait, with `cores` hot cores, in some percent of the points."""
    busy = spread(percent)
    return observed(
        host(
            cpu=lambda point, core: 99.0 if busy(point) and core < cores else 20.0,
            gpu=lambda point, device: 2.0 if busy(point) else 90.0,
            **options,
        )
    )


def test_cpu_bottleneck_fires_above_half_of_the_time() -> None:
    fired = said(bound(60, 4), "CPUBottleneck")
    assert (fired.violations, fired.datapoints, fired.triggered) == (1200, 2000, 1)
    assert fired.evidence[0].node == "algo-1"
    assert said(bound(60, 4), "LowGPUUtilization").triggered == 2
    silent = said(bound(40, 4), "CPUBottleneck")
    assert (silent.violations, silent.datapoints, silent.state) == (800, 2000, "silent")


def test_one_hot_core_is_no_bottleneck() -> None:
    """The original fires on 1200 of 2000 here."""
    one = said(bound(60, 1), "CPUBottleneck")
    assert (one.violations, one.state) == (0, "silent")
    assert said(bound(60, 3), "CPUBottleneck").fired
    assert said(bound(60, 1), "CPUBottleneck", core_share=20).violations == 1200


def test_hosts_are_judged_apart() -> None:
    busy = spread(60)
    well = host("algo-1")
    badly = host("algo-2", cpu=lambda p, c: 99.0, gpu=lambda p, d: 2.0 if busy(p) else 90.0)
    fired = said(observed([*well, *badly]), "CPUBottleneck")
    assert (fired.violations, fired.datapoints, fired.triggered) == (1200, 4000, 1)
    assert {one.node for one in fired.evidence} == {"algo-2"}


def test_io_bottleneck() -> None:
    waits = spread(60)
    seen = observed(
        host(
            iowait=lambda point, core: 80.0 if waits(point) and core == 0 else 1.0,
            gpu=lambda point, device: 2.0 if waits(point) else 90.0,
        )
    )
    fired = said(seen, "IOBottleneck")
    assert (fired.violations, fired.datapoints, fired.triggered) == (1200, 2000, 1)
    assert said(observed(host()), "IOBottleneck").state == "silent"


def test_low_gpu_and_batch_size_at_a_constant_forty() -> None:
    low = observed(host(gpu=lambda point, device: 40.0))
    assert said(low, "LowGPUUtilization").triggered == 2
    assert said(low, "BatchSize").triggered == 2
    full = observed(host(gpu=lambda point, device: 40.0, memory=lambda point, device: 85.0))
    assert said(full, "LowGPUUtilization").triggered == 2
    assert said(full, "BatchSize").triggered == 0
    assert said(observed(host()), "LowGPUUtilization").state == "silent"


def test_fluctuating_gpu() -> None:
    zero = spread(10)
    assert said(observed(host(gpu=lambda p, d: 0.0 if zero(p) else 90.0)), "LowGPUUtilization").triggered == 2


def test_memory_step() -> None:
    seen = observed(host(memory=lambda point, device: 20.0 if point < 1500 else 80.0))
    fired = said(seen, "GPUMemoryIncrease")
    assert (fired.violations, fired.triggered) == (20, 2)
    assert fired.evidence[0].began == pytest.approx(BEGAN + 750, abs=1)
    early = observed(host(memory=lambda point, device: 20.0 if point < 100 else 80.0))
    assert said(early, "GPUMemoryIncrease").state == "silent"


def test_load_balancing_compares_all_pairs_also_between_hosts() -> None:
    """The original compares the last GPU with itself."""
    fired = said(observed(host(gpu=lambda point, device: 95.0 if device == 0 else 30.0)), "LoadBalancing")
    assert (fired.violations, fired.state) == (1, "fired")
    hosts = [*host("algo-1", gpu=lambda p, d: 95.0), *host("algo-2", gpu=lambda p, d: 30.0)]
    assert said(observed(hosts), "LoadBalancing").violations == 4
    assert said(observed(host()), "LoadBalancing").state == "silent"
    assert said(observed(host(gpus=1)), "LoadBalancing").why_not == "there is one GPU alone"


def test_the_bin_of_full_gpus_counts() -> None:
    seen = observed(host(gpu=lambda point, device: 100.0 if device == 0 else 50.0))
    assert said(seen, "LoadBalancing").fired


def test_distance() -> None:
    one, other = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    assert distance(one, other) == pytest.approx(math.sqrt(math.log(2)))  # 0.8326: nothing in common
    assert distance(one, one) == 0
    assert distance(np.array([0.5, 0.5]), one) == pytest.approx(0.4645, abs=1e-4)


@pytest.mark.parametrize(
    "rule", ["CPUBottleneck", "IOBottleneck", "LowGPUUtilization", "BatchSize", "LoadBalancing", "GPUMemoryIncrease"]
)
def test_nothing_is_judged_before_patience(rule: str) -> None:
    waiting = host(points=900, cpu=lambda p, c: 99.0, gpu=lambda p, d: 2.0, iowait=lambda p, c: 90.0)
    seen = observed(waiting)
    early = said(seen, rule)
    assert (early.state, early.triggered) == ("not judged", 0)
    assert "900 samples are too few" in early.why_not
    assert said(seen, rule, patience=100).state in ("fired", "silent")
    assert said(observed(host(gpus=0)), rule).why_not == "no GPU was measured"


def test_step_outliers() -> None:
    many = observed(steps=ranks(2, 1000, own=lambda rank, n: 2.0 if n % 80 == 0 else 0.1))
    fired = said(many, "StepOutlier")
    assert (fired.triggered, fired.violations, fired.datapoints) == (2, 26, 2000)
    few = observed(steps=ranks(2, 1000, own=lambda rank, n: 2.0 if n % 200 == 0 else 0.1))
    assert said(few, "StepOutlier").state == "silent"
    assert said(observed(steps=ranks(2, 100)), "StepOutlier").state == "not judged"


def test_late_first_step() -> None:
    late = observed(host(points=3), ranks(2, 5, began=BEGAN + 1300))
    fired = said(late, "MaxInitializationTime")
    assert fired.triggered == 1
    assert fired.details["initialization_minutes"] == pytest.approx(21.67, abs=0.01)
    assert not said(late, "MaxInitializationTime", threshold=25).fired
    assert said(observed(host(points=3)), "MaxInitializationTime").state == "not judged"


def test_loader_processes() -> None:
    def loaders(count: float) -> Observed:
        now = [BEGAN + second for second in range(20)]
        rows = [("loaders", count, time) for time in now] + [("cores", 8.0, time) for time in now]
        return observed(
            {"Type": "process", "Name": n, "Dimension": "Count", "Value": v, "NodeId": "algo-1", "Timestamp": t}
            for n, v, t in rows
        )

    assert said(loaders(2), "Dataloader").fired
    assert said(loaders(20), "Dataloader").fired
    assert said(loaders(8), "Dataloader").state == "silent"
    assert said(loaders(0), "Dataloader").state == "not judged"


def test_waiting_for_data() -> None:
    fired = said(observed(steps=ranks(2, 50, data=0.05)), "DataLoadingBound")
    assert (fired.triggered, fired.violations) == (2, 100)
    assert fired.details["percent_of_step"]["algo-1 rank 0"] == pytest.approx(45.5, abs=0.1)
    assert said(observed(steps=ranks(2, 50)), "DataLoadingBound").state == "silent"
    assert "10 samples are too few" in said(observed(steps=ranks(2, 10)), "DataLoadingBound").why_not


def test_waiting_for_collectives() -> None:
    assert said(observed(steps=ranks(2, 50, transfer=0.1)), "CommunicationBound").triggered == 2
    assert said(observed(steps=ranks(2, 50, transfer=0.01)), "CommunicationBound").state == "silent"
    unmeasured = observed(steps=[step("algo-1", 0, n, BEGAN + n, 0.5, CollectiveSeconds=None) for n in range(50)])
    assert said(unmeasured, "CommunicationBound").why_not == "nobody measured the time in collectives"


def test_a_late_rank_is_found_although_all_steps_last_as_long() -> None:
    seen = observed(steps=ranks(8, 100, own=lambda rank, number: 0.15 if rank == 5 else 0.1, per_host=4))
    assert seen.steps["Seconds"].n_unique() == 1
    fired = said(seen, "StragglerRank")
    assert [(one.node, one.device) for one in fired.evidence] == [("algo-2", "rank 5")]
    assert fired.violations == 100
    assert "0.05 s later than the median rank (50 % of its 0.1 s), in 100 % of the steps" in fired.summary
    turns = observed(steps=ranks(8, 100, own=lambda rank, number: 0.15 if rank == number % 8 else 0.1))
    assert said(turns, "StragglerRank").state == "silent"
    assert said(observed(steps=ranks(1, 50)), "StragglerRank").why_not == "one rank alone marked steps"
    nothing = observed(steps=[step("algo-1", rank, n, BEGAN + n, 0.0) for n in range(30) for rank in range(2)])
    assert "take no time" in said(nothing, "StragglerRank").why_not


@pytest.mark.parametrize("value", ["true", '"true"', '"\\"true\\""'])
def test_single_host(value: str) -> None:
    job: dict[str, Any] = {
        "HyperParameters": {"sagemaker_distributed_dataparallel_enabled": value},
        "ResourceConfig": {"InstanceCount": 1},
    }
    assert said(observed(job=job), "SingleHost").fired
    job["ResourceConfig"]["InstanceCount"] = 2
    assert not said(observed(job=job), "SingleHost").fired
    assert not said(observed(job={**job, "HyperParameters": {}}), "SingleHost").fired
    assert said(observed(), "SingleHost").state == "not judged"


def test_storage_throughput_says_what_to_provision() -> None:
    """Two hosts that each read 50 MB/s and wait half of their steps would read 200 MB/s: one unit of FSx."""
    hosts = [*host("algo-1", points=200), *host("algo-2", points=200)]
    fired = said(observed(hosts, ranks(4, 300, data=0.055)), "StorageThroughput")
    assert fired.details == {"read_bytes_per_second": 100_000_000, "needed_bytes_per_second": 200_000_000}
    assert "FSx for Lustre SCRATCH_2 of 1.2 TiB gives 240 MB/s" in fired.advice
    assert said(observed(hosts, ranks(4, 300)), "StorageThroughput").state == "silent"
    assert said(observed(hosts), "StorageThroughput").state == "not judged"


def test_small_shared_memory() -> None:
    seen = Observed(
        observed().metrics, observed().steps, log_marks={"SmallSharedMemory": ["algo-2: RuntimeError: shm"]}
    )
    fired = said(seen, "SmallSharedMemory")
    assert (fired.triggered, fired.evidence[0].node, fired.evidence[0].text) == (1, "algo-2", "RuntimeError: shm")
    assert said(observed(), "SmallSharedMemory").state == "silent"


def test_a_module_list_in_sequence() -> None:
    def placed(*lists: dict[str, Any], traced: bool = True) -> Observed:
        told = [{"Traced": traced, "ModuleListsInSequence": list(lists)}]
        return Observed(observed().metrics, observed().steps, placements=told)

    fired = said(placed({"Name": "encoder.blocks", "Modules": 6, "Ranks": [0, 1]}), "ModuleListInSequence")
    assert fired.triggered == 1
    assert fired.evidence[0].text == "encoder.blocks: 6 modules on ranks 0, 1"
    assert fired.advice.startswith("self.blocks = nn.Sequential(*modules) in place of nn.ModuleList(modules)")
    assert said(placed(), "ModuleListInSequence").state == "silent"
    assert said(placed(traced=False), "ModuleListInSequence").why_not == "smp did not trace the model"
    assert said(observed(), "ModuleListInSequence").why_not == "no model was divided over ranks by smp"


def test_usage_of_each_host() -> None:
    seen = observed([*host("algo-2", points=100), *host("algo-10", points=100, cpu=lambda point, core: point)])
    rows = said(seen, "OverallSystemUsage").details["usage"]
    cpu = [row for row in rows if row["Metric"] == "CPU"]
    assert [row["NodeId"] for row in cpu] == ["algo-2", "algo-10"]
    assert cpu[1] == {
        "NodeId": "algo-10",
        "Metric": "CPU",
        "max": 99,
        "p99": 98.01,
        "p95": 94.05,
        "p50": 49.5,
        "min": 0,
    } | {name: pytest.approx(cpu[1][name]) for name in ("p99", "p95")}


def test_an_empty_run_is_judged_by_nobody() -> None:
    outcomes = judge(observed(), chosen({}))
    assert [outcome.rule for outcome in outcomes] == list(RULES)
    assert not any(outcome.fired for outcome in outcomes)


def rule(name: str, **parameters: str) -> dict[str, Any]:
    given = {"rule_to_invoke": name, **parameters}
    return {"RuleConfigurationName": name, "RuleEvaluatorImage": "x", "RuleParameters": given}


def test_a_job_names_its_rules_and_their_thresholds() -> None:
    parameters = chosen({"ProfilerRuleConfigurations": [rule("CPUBottleneck", threshold="20", cpu_threshold="80")]})
    assert list(parameters) == ["CPUBottleneck"]
    numbers = parameters["CPUBottleneck"].numbers()
    assert (numbers["threshold"], numbers["cpu_threshold"], numbers["gpu_threshold"]) == (20, 80, 10)
    assert [outcome.rule for outcome in judge(observed(), parameters)] == ["CPUBottleneck", "OverallSystemUsage"]
    whole = chosen({"ProfilerRuleConfigurations": [rule("ProfilerReport", CPUBottleneck_cpu_threshold="85")]}, 100)
    assert list(whole) == list(RULES)
    assert whole["CPUBottleneck"].numbers()["cpu_threshold"] == 85
    assert whole["CPUBottleneck"].numbers()["patience"] == 100


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        (rule("CPUBottlenek"), "no rule 'CPUBottlenek'"),
        (rule("CPUBottleneck", treshold="5"), "CPUBottleneck: no parameter 'treshold'"),
        (rule("CPUBottleneck", threshold="much"), "CPUBottleneck: threshold: 'much': a number was expected"),
        (rule("CPUBottleneck", threshold="nan"), "at least 0"),
    ],
)
def test_what_a_rule_does_not_have_is_refused(named: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ShoalError, match=sentence):
        chosen({"ProfilerRuleConfigurations": [named]})


def test_intervals() -> None:
    times = [float(second) for second in range(10)]
    assert intervals(times, [t in (1, 2, 7) for t in times], 2.0) == [(1.0, 3.0), (7.0, 8.0)]
    assert intervals(times, [t in (1, 4) for t in times], 3.0) == [(1.0, 5.0)]
    assert intervals([], [], 1.0) == []
