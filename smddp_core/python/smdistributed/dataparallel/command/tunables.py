"""What `smddp tune` tries: each setting, the values worth trying, and the sizes whose time it changes."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True)
class Tunable:
    """A setting that rank 0 chooses for all. ``sizes`` are bytes of a float32 all-reduce."""

    name: str
    values: tuple[str, ...]
    sizes: tuple[int, ...]
    several_ranks_a_host: bool = False
    several_hosts: bool = False

    def matters(self, hosts: int, ranks_a_host: int) -> bool:
        """Whether a group of this shape uses the setting at all."""
        return (hosts > 1 or not self.several_hosts) and (ranks_a_host > 1 or not self.several_ranks_a_host)


def _numbers(*values: int) -> tuple[str, ...]:
    return tuple(str(value) for value in values)


# In the order in which they are tried: what is found for one holds while the next is measured. Settings that the
# compiled library does not have are left out.
TUNABLES = (
    Tunable(
        "SMDDP_SHM_CHUNK_BYTES",
        _numbers(256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB),
        (MIB, 16 * MIB, 64 * MIB),
        several_ranks_a_host=True,
    ),
    Tunable(
        "SMDDP_ONE_SHOT_BYTES",
        _numbers(4 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB),
        (8 * KIB, 32 * KIB, 64 * KIB, 128 * KIB),
        several_ranks_a_host=True,
    ),
    Tunable(
        "SMDDP_NET_SHARD_BYTES",
        _numbers(128 * KIB, 256 * KIB, 512 * KIB, MIB),
        (MIB, 16 * MIB, 64 * MIB),
        several_hosts=True,
    ),
    Tunable(
        "SMDDP_NET_PIECE_BYTES",
        _numbers(64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB),
        (MIB, 16 * MIB, 64 * MIB),
        several_hosts=True,
    ),
    # Not SMDDP_NET_ONE_SHOT_BYTES: operations of the sizes for which it matters find out by themselves.
    Tunable("SMDDP_STREAMS", _numbers(1, 2, 4, 8), (MIB, 16 * MIB, 64 * MIB), several_hosts=True),
)
