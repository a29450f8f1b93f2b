"""Names of the files of a checkpoint: published or found in open clients, see each."""

from __future__ import annotations

from typing import NamedTuple

# A folder of a partial checkpoint is its tag with this behind it; `newest` holds the name of the newest folder or file.
PARTIAL = "_partial"
NEWEST = "newest"
USER_CONTENT = "user_content.pt"
# Which module is on which rank, and what else is in the folder.
PARTITION = "partition.pt"


class Place(NamedTuple):
    """What of the model a rank holds: pipeline, tensor and reduced data parallel rank."""

    pp: int
    tp: int
    rdp: int


def written(f: str, place: Place, *, tp_size: int, v3: bool) -> str:
    """The file of `smp.save(obj, f, partial=True)`.

    f_{mp_rank}, with tensor parallelism f_{pp}_{tp}, v3 f_{pp}_{tp}_{rdp}. Without tensor parallelism
    mp_rank is pp_rank.
    """
    if v3:
        return f"{f}_{place.pp}_{place.tp}_{place.rdp}"
    return f"{f}_{place.pp}_{place.tp}" if tp_size > 1 else f"{f}_{place.pp}"


def probed(f: str, place: Place, mp_rank: int) -> list[str]:
    """Where `smp.load(f, partial=True)` looks, newest scheme first."""
    return [f"{f}_{place.pp}_{place.tp}_{place.rdp}", f"{f}_{place.pp}_{place.tp}", f"{f}_{mp_rank}"]


def part(kind: str, place: Place, *, per_replica: bool) -> str:
    """A file in a folder of `save_checkpoint`: model_{pp}_{tp}.pt; one more number where each replica has its own."""
    return f"{kind}_{place.pp}_{place.tp}{f'_{place.rdp}' if per_replica else ''}.pt"


def user_content_of_full(tag: str) -> str:
    """What stands beside the full checkpoint `tag`."""
    return f"user_content_{tag}"
