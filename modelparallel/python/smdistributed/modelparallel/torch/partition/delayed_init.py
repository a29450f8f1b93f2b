"""Parameters without memory until their rank is known: `smp.delay_param_initialization`, `smp.model_creation`.

Inside the context every parameter is moved to the meta device when it is registered, and what initialises it is
recorded (tape.py). `materialise` makes the values on the rank that owns them. Buffers and other tensors are real at
once, so what is computed in a constructor (masks, frequencies, schedules) is right as it is.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any, Callable, Iterable, Iterator

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from .. import checks
from ..exceptions import SMPError, SMPUnsupportedError, SMPValueError
from .replay import Replay
from .tape import Tape

logger = logging.getLogger("smdistributed.modelparallel")

_tapes: list[Tape] = []


class _Active(threading.local):
    """The tape that this thread records on."""

    def __init__(self) -> None:
        self.tape: Tape | None = None


_active = _Active()


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Puts every operation of this thread on a tape."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape = tape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default):
            return func(*(self._read(each) for each in args))
        return self.tape.perform(func, args, kwargs or {})

    def _read(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with its present value: initialisers that look at what they drew need it."""
        if tensor.device.type != "meta" or self.tape.number_of(tensor) is None:
            return tensor
        ref = self.tape.ref(tensor)
        return ref.over(Replay(self.tape, {ref.storage}).run()[ref.storage])


# Methods that belong to attributes of tensors are made anew at each access: they are equal, not identical.
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
_GET_IS_META = torch.Tensor.is_meta.__get__  # type: ignore[attr-defined]


class _Pretence(TorchFunctionMode):
    """Lets delayed parameters pass for real ones where torch would treat them otherwise.

    `parameter.data = tensor` replaces what has no data by what has, which torch refuses. `is_meta` is False: some of
    torch.nn.init do nothing for meta tensors, and what they do would not be recorded.
    """

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == _GET_IS_META and args[0].is_meta and self.tape.number_of(args[0]) is not None:
            return False
        if func == _SET_DATA and args[0].is_meta and not args[1].is_meta:
            with torch.no_grad():
                _exchange(args[0], args[1].detach())
            if isinstance(args[0], nn.Parameter):
                _forget(self.tape, args[0])
            return None
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def delay_param_initialization(enabled: bool = True) -> Iterator[None]:
    """Parameters created inside take no memory before the model is partitioned; their owner initialises them then.

    enabled: False makes this context do nothing. Values are those of an eager run with the same seed as long as a rank
    can repeat the other ranks' draws in seconds (up to 2**30 elements), else the same distribution. Initialise inside
    the context: what a script does to parameters after it is lost. Needs torch 2.3 for modules' identity to be kept;
    raises SMPUnsupportedError on older ones, SMPValueError for what is neither True nor False.
    """
    enabled = checks.flag("smp.delay_param_initialization", "enabled", enabled)
    if not enabled or _active.tape is not None:
        yield
        return
    if not hasattr(torch.utils, "swap_tensors"):
        raise SMPUnsupportedError(
            f"delayed initialisation needs torch >= 2.3 and this is {torch.__version__}: leave it off"
        )
    tape = Tape()
    _active.tape = tape
    _patches.install()
    try:
        with _Pretence(tape), _Recorder(tape):
            yield
    finally:
        _active.tape = None
        _patches.remove()
    tape.prune()
    _tapes[:] = [each for each in _tapes if each.alive()]
    _tapes.append(tape)


def materialise(module: nn.Module, names: Iterable[str], exact: bool | None = None) -> None:
    """Gives values to the delayed parameters and buffers that the modules of these names hold themselves.

    names: of `module.named_modules()`. Tensor objects stay the same ones, so optimizers and tied modules see them.
    exact: see Replay. Raises SMPError for a parameter on the meta device that no context recorded, SMPValueError for a
    name that is none.
    """
    modules = dict(module.named_modules(remove_duplicate=False))
    tensors: dict[int, torch.Tensor] = {}
    recurrent: list[nn.RNNBase] = []
    for name in names:
        if name not in modules:
            raise SMPValueError(f"the model has no module {name!r}")
        held = modules[name]
        found = {key: each for key, each in _own(held) if each.is_meta}
        _check_recorded(name, held, found)
        tensors.update((id(each), each) for each in found.values())
        if found and isinstance(held, nn.RNNBase):
            recurrent.append(held)
    # Weak references to parameters, which cannot be swapped then; made anew below.
    for each in recurrent:
        each._flat_weight_refs = []
    for tape in list(_tapes):
        _fill(tape, [tensor for tensor in tensors.values() if tape.number_of(tensor) is not None], exact)
    for each in recurrent:
        each._init_flat_weights()


def is_delayed(module: nn.Module) -> bool:
    """Whether any parameter of module waits for its value."""
    return any(parameter.is_meta for parameter in module.parameters())


def _fill(tape: Tape, tensors: list[torch.Tensor], exact: bool | None) -> None:
    if not tensors:
        return
    refs = [tape.ref(tensor) for tensor in tensors]
    replay = Replay(tape, {ref.storage for ref in refs}, exact)
    if not replay.exact:
        logger.info("delayed parameters are drawn with a seed each: same distribution as without delay, other values")
    storages = replay.run()
    for tensor, ref in zip(tensors, refs):
        value = ref.over(storages[ref.storage])
        _exchange(tensor, value)


def _exchange(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """tensor becomes value, and stays the object that others hold; class and attributes stay too."""
    made = torch.Tensor._make_subclass(type(tensor), value, tensor.requires_grad)
    made.__dict__.update(tensor.__dict__)
    try:
        torch.utils.swap_tensors(tensor, made)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise SMPUnsupportedError(
            f"a parameter of shape {tuple(tensor.shape)} whose initialisation is delayed is referred to in a way that "
            f"it cannot be given its value ({error}): create its module outside of smp.delay_param_initialization"
        ) from error


def _own(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(recurse=False)
    yield from module.named_buffers(recurse=False)


def _check_recorded(name: str, module: nn.Module, found: dict[str, torch.Tensor]) -> None:
    for key, tensor in found.items():
        if not any(tape.number_of(tensor) is not None for tape in _tapes):
            raise SMPError(
                f"{key!r} of the module {name!r} ({type(module).__name__}) is on the meta device and nothing recorded "
                "how to initialise it: create the model in smp.delay_param_initialization() instead"
            )


class _Patches:
    """What is replaced in torch while any thread is in the context; for other threads it does what it did."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._originals: list[tuple[Any, str, Any]] = []

    def install(self) -> None:
        with self._lock:
            if not self._users:
                self._replace(nn.Module, "register_parameter", _registering)
                # Draws again what falls outside of its bounds, so it looks at values; on a tape it is one operation.
                self._replace(nn.init, "_no_grad_trunc_normal_", _truncating)
            self._users += 1

    def remove(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                while self._originals:
                    setattr(*self._originals.pop())

    def _replace(self, owner: Any, name: str, wrapped: Callable[[Any], Any]) -> None:
        original = getattr(owner, name, None)
        if original is not None:
            self._originals.append((owner, name, original))
            setattr(owner, name, wrapped(original))


_patches = _Patches()


def _registering(original: Callable[..., None]) -> Callable[..., None]:
    def register_parameter(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        original(self, name, param)
        if param is not None and _active.tape is not None:
            _forget(_active.tape, param)

    return register_parameter


def _truncating(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def truncate(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        tape = _active.tape
        if tape is None or tensor.device.type != "meta" or tape.number_of(tensor) is None:
            return original(tensor, *args, **kwargs)
        return tape.perform_whole(original, tensor, *args, **kwargs)

    return truncate


def _forget(tape: Tape, parameter: nn.Parameter) -> None:
    """Gives up the memory of a parameter whose value the tape can make; others (from files, say) keep theirs."""
    if parameter.device.type == "meta" or parameter.layout != torch.strided or tape.number_of(parameter) is None:
        return
    # As long a storage: the parameter may be a view of a part of it, and the tape goes by places in the storage.
    storage = torch.UntypedStorage(parameter.untyped_storage().nbytes(), device="meta")  # type: ignore[no-untyped-call]
    with _disable_current_modes():
        geometry = (parameter.storage_offset(), parameter.size(), parameter.stride())
        imagined = torch.empty(0, dtype=parameter.dtype, device="meta").set_(storage, *geometry)
    tape.stand_in(parameter, imagined)
    with torch.no_grad():
        _exchange(parameter, imagined)
