"""What of a file's content is believed: numbers that somebody can have measured, a description of the known form."""

from typing import Any

import polars as pl

EARLIEST, LATEST = 946_684_800.0, 4_102_444_800.0  # 2000 and 2100: outside of it no clock was ever set
_MOST = 1e18  # bytes a second, or anything else
_LONGEST_S = 1e9
_MOST_RANKS, _MOST_STEPS = 1 << 31, 1 << 53
_LONGEST_WORD = 200
_PARTS = ("DataSeconds", "CollectiveSeconds", "CollectiveBytes", "CheckpointSeconds")
# What is read of job.json; a field of another kind is as if it were not there.
_JOB = {
    "TrainingJobName": str,
    "TrainingJobStatus": str,
    "SecondaryStatus": str,
    "FailureReason": str,
    "AlgorithmSpecification": {"TrainingImage": str},
    "ResourceConfig": {
        "InstanceCount": int,
        "InstanceType": str,
        "InstanceGroups": [{"InstanceCount": int, "InstanceType": str}],
    },
    "HyperParameters": dict,
    "Environment": dict,
    "ProfilerRuleConfigurations": [{"RuleConfigurationName": str, "RuleParameters": dict}],
}


def rows(frame: pl.DataFrame, needed: tuple[str, ...]) -> pl.DataFrame:
    """Return the rows that have all that is needed, and nothing in it that nobody can have measured."""
    kinds = frame.schema
    good = [pl.col(needed).is_not_null(), pl.col("Timestamp").is_between(EARLIEST, LATEST)]
    good += [pl.col(name).str.len_bytes() <= _LONGEST_WORD for name in needed if kinds[name] == pl.String]
    if "Value" in kinds:
        good.append(pl.col("Value").is_between(-_MOST, _MOST))
    if "Seconds" in kinds:
        good.append(pl.col("Seconds").is_between(0, _LONGEST_S))
        good.append(pl.col("Rank").is_between(0, _MOST_RANKS))
        good.append(pl.col("Step").fill_null(0).is_between(0, _MOST_STEPS))
    parts = [name for name in _PARTS if name in kinds]
    believed = [pl.when(pl.col(name).is_between(0, _MOST)).then(pl.col(name)).alias(name) for name in parts]
    return frame.filter(pl.all_horizontal(good)).with_columns(believed)


def job(content: Any) -> dict[str, Any]:
    """Return the fields of a job's description that are of the kind that they ought to be."""
    return _fitting(content, _JOB) or {}


def environment(content: Any) -> dict[str, Any]:
    """Return the fields of a host's description of itself that are of the kind that they ought to be."""
    found = _fitting(content, {"NodeId": str, "Python": str, "Kernel": str, "Packages": dict}) or {}
    packages = {name: version for name, version in found.get("Packages", {}).items() if isinstance(version, str)}
    return {**found, "Packages": packages} if found.get("NodeId") else {}


def _fitting(value: Any, form: Any) -> Any:
    """Return `value` without what does not fit the form; None if nothing does."""
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return None
        kept = {name: _fitting(value[name], form[name]) for name in form if name in value}
        return {name: part for name, part in kept.items() if part is not None}
    if isinstance(form, list):
        parts = [_fitting(one, form[0]) for one in value] if isinstance(value, list) else []
        return [part for part in parts if part is not None]
    fits = isinstance(value, form) and not (form is int and isinstance(value, bool))
    return value if fits else None
