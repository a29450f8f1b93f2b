"""`smp.save` and `smp.load`: torch.save and torch.load of one file a rank."""

from __future__ import annotations

import glob
import os
import pickle
from pathlib import Path
from typing import Any

from .. import checks, comm
from ..exceptions import CheckpointError
from . import atomic, names
from .reading import read_object


def save(
    obj: Any,
    f: str,
    partial: bool = True,
    pickle_module: Any = pickle,
    pickle_protocol: int = 2,
    v3: bool = False,
) -> None:
    """Save any object as torch.save does, all or nothing: a file that is there stays until the new one is complete.

    f: path of the file. partial: one file a rank, the rank's place behind the name: f_{mp_rank}, with tensor
    parallelism f_{pp_rank}_{tp_rank}. v3: f_{pp_rank}_{tp_rank}_{rdp_rank}, for what differs between replicas. Call it
    on the ranks that have something to save: with partial those of rdp_rank 0 (without tensor parallelism the same as
    dp_rank 0), with v3 all.
    Raises CheckpointError, with the file and the cause, when the file cannot be written, SMPValueError when f is no
    path.
    """
    path = checks.path("smp.save", "f", f)
    partial, v3 = checks.flag("smp.save", "partial", partial), checks.flag("smp.save", "v3", v3)
    if partial:
        path = names.written(path, _place(), tp_size=comm.tp_size(), v3=v3)
    atomic.save_object(obj, Path(path), pickle_module=pickle_module, pickle_protocol=pickle_protocol)


def load(
    f: str,
    map_location: Any = None,
    pickle_module: Any = None,
    pickle_load_args: dict[str, Any] | None = None,
    partial: bool = True,
    back_compat: bool = False,
    **more_load_args: Any,
) -> Any:
    """Load what `save` saved; with partial, this rank's part, looked for under the names of v3, v2 and v1.

    map_location, pickle_module, pickle_load_args and further arguments: as for torch.load. Its default of weights_only
    holds too (true from torch 2.6): a file with more than tensors and plain values (an argparse.Namespace, say) is then
    refused with a sentence that says so; pass weights_only=False for files that you trust. back_compat: the part is
    named f_{mp_rank}, as releases before 1.6 named it.
    Raises CheckpointError when the file, or this rank's part, is missing or cannot be read.
    """
    path = checks.path("smp.load", "f", f)
    partial = checks.flag("smp.load", "partial", partial)
    back_compat = checks.flag("smp.load", "back_compat", back_compat)
    options = {**(pickle_load_args or {}), **more_load_args}
    # torch.load takes weights_only or a pickle module, not both.
    if pickle_module is not None and pickle_module is not pickle:
        options["pickle_module"] = pickle_module
    found = _part_to_load(path, back_compat) if partial else path
    return read_object(Path(found), map_location=map_location, **options)


def _part_to_load(f: str, back_compat: bool) -> str:
    place, mp_rank = _place(), comm.mp_rank()
    candidates = [f"{f}_{mp_rank}"] if back_compat else names.probed(f, place, mp_rank)
    for candidate in candidates:
        if os.path.exists(candidate):  # noqa: PTH110 - f may be any prefix, as clients write it
            return candidate
    there = sorted(os.path.basename(one) for one in glob.glob(f"{glob.escape(f)}_*"))  # noqa: PTH119, PTH207
    whole = " there is a full checkpoint of that name: pass partial=False" if os.path.isfile(f) else ""  # noqa: PTH113
    raise CheckpointError(
        f"no part of {f} for this rank (pp_rank {place.pp}, tp_rank {place.tp}, rdp_rank {place.rdp}): looked for "
        f"{', '.join(os.path.basename(one) for one in candidates)}; "  # noqa: PTH119
        f"there are {', '.join(there) if there else 'none'};{whole or ' load with the degrees it was saved with'}"
    )


def _place() -> names.Place:
    return names.Place(comm.pp_rank(), comm.tp_rank(), comm.rdp_rank())
