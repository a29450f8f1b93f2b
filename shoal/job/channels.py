"""The input channels of a job: what each is, which hosts it reaches, what of it a local run refuses. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.job.shape import Problem, show
from shoal.job.spec import FILE_SCHEME, JobFile, Request

S3_SCHEME = "s3://"


@dataclass(frozen=True)
class Channel:
    """One channel: where its data is, and how it arrives at the hosts that have it."""

    name: str
    mode: str  # File, FastFile or Pipe
    data_type: str  # S3Prefix, ManifestFile or AugmentedManifestFile
    uri: str  # s3://..., or file:// and an absolute path
    hosts: tuple[str, ...]
    sharded: bool  # each host has a part of the objects, not all of them
    attributes: tuple[str, ...]  # of an augmented manifest
    record_io: bool
    gzip: bool
    seed: int | None  # shuffled with this seed; None: in the order of the keys

    @property
    def is_mounted(self) -> bool:
        """Whether every host sees the very folder: nothing has to be fetched, divided or fed."""
        return (
            self.mode != "Pipe"
            and self.data_type == "S3Prefix"
            and self.uri.startswith(FILE_SCHEME)
            and not (self.sharded and len(self.hosts) > 1)
        )


def channels(job: JobFile, request: Request, groups: Sequence[tuple[str, list[str]]]) -> tuple[Channel, ...]:
    """Return the channels of a request that `refusals` has nothing against; `groups` are names and hosts of each."""
    return tuple(_channel(job, entry, request, groups) for entry in request.get("InputDataConfig", []))


def _channel(job: JobFile, entry: Request, request: Request, groups: Sequence[tuple[str, list[str]]]) -> Channel:
    source = entry["DataSource"]["S3DataSource"]
    only = source.get("InstanceGroupNames")
    uri = source["S3Uri"]
    return Channel(
        name=entry["ChannelName"],
        mode=input_mode(entry, request["AlgorithmSpecification"]),
        data_type=source["S3DataType"],
        uri=job.local_path(uri).as_uri() if uri.startswith(FILE_SCHEME) else uri,
        hosts=tuple(host for name, hosts in groups for host in hosts if not only or name in only),
        sharded=source.get("S3DataDistributionType") == "ShardedByS3Key",
        attributes=tuple(source.get("AttributeNames", ())),
        record_io=entry.get("RecordWrapperType") == "RecordIO",
        gzip=entry.get("CompressionType") == "Gzip",
        seed=entry["ShuffleConfig"]["Seed"] if "ShuffleConfig" in entry else None,
    )


def input_mode(channel: Request, algorithm: Request) -> str:
    """Return a channel's input mode: its own, or the job's."""
    return str(channel.get("InputMode") or algorithm["TrainingInputMode"])


def refusals(request: Request) -> list[Problem]:
    """Return what in the channels of a valid request a local run cannot honour."""
    declared = request.get("InputDataConfig", [])
    algorithm = request.get("AlgorithmSpecification", {})
    found = [
        problem
        for index, channel in enumerate(declared)
        for problem in _refusals(f"InputDataConfig[{index}]", channel, input_mode(channel, algorithm))
    ]
    names = {channel["ChannelName"] for channel in declared}
    for index, channel in enumerate(declared):
        base, _, epoch = channel["ChannelName"].rpartition("_")
        if epoch.isdecimal() and base in names:
            other = next(c for c in declared if c["ChannelName"] == base)
            if input_mode(other, algorithm) == "Pipe":
                text = f"{show(channel['ChannelName'])} is the name of an epoch's pipe of channel {show(base)}"
                found.append(Problem(f"InputDataConfig[{index}].ChannelName", text))
    return found


def _refusals(place: str, channel: Request, mode: str) -> list[Problem]:
    name = channel["ChannelName"]
    source = channel["DataSource"].get("S3DataSource")
    if name in (".", ".."):
        return [Problem(f"{place}.ChannelName", f"{show(name)} names no folder")]
    if source is None:
        what = ", ".join(channel["DataSource"])
        return [Problem(f"{place}.DataSource", f"{what} is not here: give --channel {name}=FOLDER")]
    found = []
    at = f"{place}.DataSource.S3DataSource"
    data_type = source["S3DataType"]
    if not source["S3Uri"].startswith((FILE_SCHEME, S3_SCHEME)):
        found.append(Problem(f"{at}.S3Uri", f"{show(source['S3Uri'])} cannot be read: only s3:// and file:// can"))
    if data_type == "Converse":
        found.append(Problem(f"{at}.S3DataType", "Converse cannot be run here"))
    # What follows is as on the service, whose documentation says it and whose model does not.
    if data_type != "S3Prefix" and mode == "FastFile":
        found.append(Problem(f"{at}.S3DataType", f"{data_type} does not go with FastFile: S3Prefix does"))
    elif data_type == "AugmentedManifestFile":
        if mode != "Pipe":
            found.append(Problem(f"{at}.S3DataType", f"{data_type} does not go with {mode}: InputMode must be Pipe"))
        if not source.get("AttributeNames"):
            found.append(Problem(f"{at}.AttributeNames", f"is missing: {data_type} needs the attributes to send"))
    if mode != "Pipe":
        for field in ("CompressionType", "RecordWrapperType"):
            if channel.get(field, "None") != "None":
                found.append(Problem(f"{place}.{field}", f"{channel[field]} does not go with {mode}: only with Pipe"))
    return found
