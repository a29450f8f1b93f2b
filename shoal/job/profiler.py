"""What a request's ProfilerConfig says to the sampler of the hosts (docs/report.md): variables of their environment."""

from shoal.job.spec import Request

SWITCH, INTERVAL = "SHOAL_PROFILE", "SHOAL_PROFILE_INTERVAL_MS"
HONOURED = {"DisableProfiler", "ProfilingIntervalInMilliseconds"}


def environment(request: Request) -> dict[str, str]:
    """Return the variables; those that the request itself sets are not among them."""
    config, found = request.get("ProfilerConfig", {}), {}
    if config.get("DisableProfiler"):
        found[SWITCH] = "0"
    if "ProfilingIntervalInMilliseconds" in config:
        found[INTERVAL] = str(config["ProfilingIntervalInMilliseconds"])
    return {name: value for name, value in found.items() if name not in request.get("Environment", {})}
