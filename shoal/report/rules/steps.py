"""Rules over the steps that ranks marked: outliers, initialization, waiting for data or for others, who is late."""

import polars as pl

from shoal.report.observed import Observed, number
from shoal.report.outcome import Evidence, Outcome, intervals
from shoal.report.rules import parameters as p
from shoal.report.rules.hardware import too_few

NO_STEPS = "no step was marked (docs/report.md says how a script marks steps)"
_RANK = ["NodeId", "Rank"]
_MIN_STEPS = 100  # the original's: fewer say nothing of a deviation
_JOIN_S = 30.0
_LISTED = 20


def step_outlier(seen: Observed, given: p.StepOutlier) -> Outcome:
    """More than `n_outliers` steps of a rank last longer than the mean and `stddev` standard deviations."""
    about, steps = "some steps last far longer than the others", seen.steps
    limit = pl.col("Seconds").mean() + given.stddev * pl.col("Seconds").std(ddof=0)
    judged = steps.with_columns(limit=limit.over(_RANK), count=pl.len().over(_RANK)).filter(
        pl.col("count") > _MIN_STEPS
    )
    slow = judged.filter(pl.col("Seconds") > pl.col("limit"))
    many = slow.filter(pl.len().over(_RANK) > given.n_outliers)
    evidence = []
    for (node, rank), frame in many.group_by(_RANK, maintain_order=True):
        worst = frame.sort("Seconds", descending=True).row(0, named=True)
        text = (
            f"{frame.height} steps over {worst['limit']:.3g} s; the longest, step {worst['Step']},"
            f" {worst['Seconds']:.3g} s"
        )
        end, first = float(worst["Timestamp"]), float(worst["Timestamp"]) - float(worst["Seconds"])
        evidence.append(Evidence(text, str(node), f"rank {rank}", first, end))
    why = "" if judged.height else NO_STEPS if steps.is_empty() else f"no rank has more than {_MIN_STEPS} steps"
    return Outcome(
        "StepOutlier",
        about,
        given.numbers(),
        datapoints=judged.height,
        violations=slow.height,
        triggered=len(evidence),
        summary=f"on {len(evidence)} ranks more than {given.n_outliers:g} steps lie {given.stddev:g}"
        f" standard deviations above"
        " the mean"
        if evidence
        else "",
        advice="look at what happens every so many steps: evaluation, checkpoints, logging, garbage"
        " collection; move it to"
        " another thread or make it rarer",
        evidence=tuple(evidence[:_LISTED]),
        why_not=why,
    )


def max_initialization_time(seen: Observed, given: p.MaxInitializationTime) -> Outcome:
    """The first step begins late."""
    about = "the first step begins late"
    if seen.steps.is_empty():
        return Outcome("MaxInitializationTime", about, given.numbers(), why_not=NO_STEPS)
    first = number((seen.steps["Timestamp"] - seen.steps["Seconds"]).min())
    minutes = (first - seen.began) / 60
    late = minutes > given.threshold
    return Outcome(
        "MaxInitializationTime",
        about,
        given.numbers(),
        datapoints=1,
        violations=int(late),
        triggered=int(late),
        summary=f"the first step began after {minutes:.1f} minutes" if late else "",
        advice="fetch less before the first step (InputMode FastFile instead of File), put packages"
        " into the image instead of"
        " requirements.txt, build the dataset's index once",
        evidence=(Evidence(f"{minutes:.1f} minutes", began=seen.began, ended=first),) if late else (),
        details={"initialization_minutes": round(minutes, 2)},
    )


def dataloader(seen: Observed, given: p.Dataloader) -> Outcome:
    """Loader processes are far fewer, or far more, than the cores."""
    about, counts, cores = "loader processes do not fit the cores", seen.named("loaders"), seen.named("cores")
    numbers = given.numbers()
    if counts.is_empty() or cores.is_empty():
        return Outcome("Dataloader", about, numbers, why_not="no sampler counted loader processes")
    limits = cores.group_by("NodeId").agg(pl.col("Value").max().alias("cores"))
    busy = counts.filter(pl.col("Value") > 0).join(limits, on="NodeId")
    per_node = busy.group_by("NodeId").agg(pl.col("Value").median(), pl.col("cores").first(), pl.len().alias("count"))
    judged = per_node.filter(pl.col("count") >= given.patience).with_columns(
        percent=100 * pl.col("Value") / pl.col("cores")
    )
    if judged.is_empty():
        return Outcome(
            "Dataloader", about, numbers, counts.height, why_not="no loader process was seen for long enough"
        )
    bad = judged.filter((pl.col("percent") < given.min_threshold) | (pl.col("percent") > given.max_threshold))
    evidence = tuple(
        Evidence(
            f"{row['Value']:.0f} loader processes on {row['cores']:g} cores ({row['percent']:.0f} %)", row["NodeId"]
        )
        for row in bad.sort("NodeId").iter_rows(named=True)
    )
    return Outcome(
        "Dataloader",
        about,
        numbers,
        datapoints=busy.height,
        violations=bad.height,
        triggered=bad.height,
        summary=evidence[0].text + f" of {evidence[0].node}" if evidence else "",
        advice="set DataLoader(num_workers=...) so that all ranks of a host together have one"
        " process a core, less the cores"
        " that the ranks themselves need",
        evidence=evidence,
    )


def data_loading_bound(seen: Observed, given: p.DataLoadingBound) -> Outcome:
    """Ranks wait for their loaders."""
    return _share(
        seen,
        "DataLoadingBound",
        "steps wait for data",
        "DataSeconds",
        given,
        "of the step's time is waiting for the data loader",
        "raise DataLoader(num_workers=..., prefetch_factor=...), preprocess once instead of in every epoch, or see"
        " StorageThroughput",
    )


def communication_bound(seen: Observed, given: p.CommunicationBound) -> Outcome:
    """Ranks wait for collectives."""
    if not seen.steps.is_empty() and seen.steps["CollectiveSeconds"].null_count() == seen.steps.height:
        why = "nobody measured the time in collectives"
        return Outcome("CommunicationBound", "steps wait for collectives", given.numbers(), why_not=why)
    return _share(
        seen,
        "CommunicationBound",
        "steps wait for collectives",
        "CollectiveSeconds",
        given,
        "of the step's time is waiting for collectives",
        "see StragglerRank first: waiting for a late rank counts here too. Then: a larger batch a rank, gradient"
        " accumulation (no_sync), half-precision gradients, fewer and larger buckets (bucket_cap_mb), a faster link",
    )


def _share(
    seen: Observed,
    rule: str,
    about: str,
    column: str,
    given: p.DataLoadingBound | p.CommunicationBound,
    what: str,
    advice: str,
) -> Outcome:
    """Fire for ranks that spend more than `threshold` percent of their steps' time in `column`."""
    steps = seen.steps.drop_nulls(column).filter(pl.col("Seconds") > 0)
    if steps.is_empty():
        return Outcome(rule, about, given.numbers(), why_not=NO_STEPS)
    enough = steps.filter(pl.len().over(_RANK) >= given.patience)
    if enough.is_empty():
        longest = steps.group_by(_RANK).len()["len"].max()
        return Outcome(
            rule, about, given.numbers(), steps.height, why_not=too_few(int(number(longest)), given.patience)
        )
    marked = enough.with_columns(percent=100 * pl.col(column) / pl.col("Seconds")).with_columns(
        violates=pl.col("percent") > given.threshold
    )
    evidence, shares = [], {}
    for (node, rank), frame in marked.group_by(_RANK, maintain_order=True):
        percent = 100 * number(frame[column].sum()) / number(frame["Seconds"].sum())
        shares[f"{node} rank {rank}"] = round(percent, 1)
        if percent > given.threshold:
            spans = intervals(frame["Timestamp"].to_list(), frame["violates"].to_list(), _JOIN_S)
            text = f"{percent:.0f} % {what}"
            span = (spans[0][0], spans[-1][1]) if spans else (None, None)
            evidence.append(Evidence(text, str(node), f"rank {rank}", *span))
    whole = 100 * number(marked[column].sum()) / number(marked["Seconds"].sum())
    return Outcome(
        rule,
        about,
        given.numbers(),
        datapoints=marked.height,
        violations=int(marked["violates"].sum()),
        triggered=len(evidence),
        summary=f"{whole:.0f} % {what}; over {given.threshold:g} % on {len(evidence)} of {len(shares)} ranks"
        if evidence
        else "",
        advice=advice,
        evidence=tuple(evidence[:_LISTED]),
        details={"percent_of_step": shares},
    )


def lateness(steps: pl.DataFrame) -> pl.DataFrame:
    """Return how late each rank is in each step: its own time (without collectives) less the median of all ranks.

    A late rank waits least in collectives: with the waiting left out, its step is the longest.
    """
    own = steps.with_columns(own=pl.col("Seconds") - pl.col("CollectiveSeconds").fill_null(0.0))
    # The lower one: of two ranks, the faster.
    usual = pl.col("own").quantile(0.5, "lower").over("Step")
    return own.with_columns(late=pl.col("own") - usual, ranks=pl.col("Rank").n_unique().over("Step")).filter(
        pl.col("ranks") > 1
    )


def straggler_rank(seen: Observed, given: p.StragglerRank) -> Outcome:
    """One rank, or a few, take longer than the others in most steps."""
    about, numbers = "one rank keeps the others waiting", given.numbers()
    late = lateness(seen.steps)
    if late.is_empty():
        why = NO_STEPS if seen.steps.is_empty() else "one rank alone marked steps"
        return Outcome("StragglerRank", about, numbers, why_not=why)
    usual = number((late["own"] - late["late"]).median())
    if usual <= 0:
        why = "half of the steps take no time but that of their collectives"
        return Outcome("StragglerRank", about, numbers, late.height, why_not=why)
    marked = late.with_columns(violates=pl.col("late") > usual * given.late / 100)
    ranks = marked.group_by(_RANK).agg(
        pl.len().alias("steps"),
        (100 * pl.col("violates").mean()).alias("percent"),
        pl.col("late").median().alias("late"),
        pl.col("Timestamp").min().alias("began"),
        pl.col("Timestamp").max().alias("ended"),
    )
    enough = ranks.filter(pl.col("steps") >= given.patience)
    if enough.is_empty():
        why = too_few(int(number(ranks["steps"].max())), given.patience)
        return Outcome("StragglerRank", about, numbers, marked.height, why_not=why)
    bad = enough.filter(pl.col("percent") > given.share).sort("late", descending=True)
    evidence = tuple(
        Evidence(
            f"{row['late']:.3g} s later than the median rank ({100 * row['late'] / usual:.0f} % of"
            f" its {usual:.3g} s), in"
            f" {row['percent']:.0f} % of the steps",
            row["NodeId"],
            f"rank {row['Rank']}",
            row["began"],
            row["ended"],
        )
        for row in bad.iter_rows(named=True)
    )
    return Outcome(
        "StragglerRank",
        about,
        numbers,
        datapoints=marked.height,
        violations=int(marked["violates"].sum()),
        triggered=bad.height,
        summary=f"{evidence[0].device} of {evidence[0].node} is {evidence[0].text}" if evidence else "",
        advice="compare that host with the others (CPU, clocks, other jobs on it), give its ranks the same work, or"
        " leave the host out",
        evidence=evidence[:_LISTED],
        details={"median_own_seconds": round(usual, 6)},
    )
