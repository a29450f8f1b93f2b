"""`smp.step`: a function whose body runs once a micro-batch, in a pipeline over the ranks that hold the model."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from typing import Any, Callable, Iterable, Iterator, Mapping

from . import checks
from .exceptions import SMPUnsupportedError, SMPValueError
from .prepare import prepare
from .server.tasks import current
from .split import split_arguments
from .state import state
from .step_output import assemble

# Held while a step runs: its state is one of the process.
_under_way = threading.Lock()


class StepFunction:
    """What the decorator returns. It does not bind to instances: decorate functions, and pass objects as arguments."""

    def __init__(
        self, function: Callable[..., Any], keep: Iterable[str], axes: Mapping[str, int], detach_outputs: bool
    ) -> None:
        functools.update_wrapper(self, function)
        self.__name__: str = getattr(function, "__name__", "step")
        self._function = function
        self._signature = inspect.signature(function)
        self._keep = frozenset(keep)
        self._axes = dict(axes)
        self._detach = detach_outputs
        names = set(self._signature.parameters)
        self._more = next((p.name for p in self._signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)
        unknown = sorted((self._keep | set(self._axes)) - names)
        if unknown and self._more is None:
            raise SMPValueError(
                f"smp.step: {function.__qualname__} has no argument {unknown[0]!r}: "
                f"its arguments are {', '.join(sorted(names))}"
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a step; every rank must call it with its own batch.

        Returns:
            What the body returns, with a StepOutput for each tensor and a list by micro-batch for anything else.

        Raises:
            SMPValueError: an argument cannot be split.
            SMPUnsupportedError: inside a step, or while another thread runs one.
            StepError: a rank failed; the text has its traceback.
            PeerLostError: a rank is gone.
        """
        state.require()
        with self._alone():
            bodies = self._bodies(args, kwargs)
            if state.model is not None and not state.model.partitioned:
                prepare(state.model, bodies)
            results = _run(lambda index: bodies[index](), len(bodies))
        return assemble(results, self._detach)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuse a second step while one is under way, in its body or in another thread."""
        if current() is not None:
            raise SMPUnsupportedError(f"step function {self.__name__!r} is called inside a step: call it outside")
        if not _under_way.acquire(blocking=False):
            raise SMPUnsupportedError(
                f"step function {self.__name__!r} is called while another thread runs a step: call step functions one "
                "after the other"
            )
        try:
            yield
        finally:
            _under_way.release()

    def _bodies(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Callable[[], Any]]:
        """Return a call of the function for each micro-batch."""
        bound = self._signature.bind(*args, **kwargs)
        given = dict(bound.arguments)
        # Arguments without a parameter of their own are named one by one, unless the decorator names them together.
        more = self._more if self._more not in self._keep and self._more not in self._axes else None
        extra = self._split(given.pop(more, {})) if more else []
        parts = self._split(given)
        calls: list[Callable[[], Any]] = []
        for index, part in enumerate(parts):
            if more and extra[index]:
                part[more] = extra[index]
            ordered = {name: part[name] for name in self._signature.parameters if name in part}
            call = inspect.BoundArguments(self._signature, ordered)
            calls.append(functools.partial(self._function, *call.args, **call.kwargs))
        return calls

    def _split(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        return split_arguments(arguments, state.cfg.microbatches, self._keep, self._axes, self.__name__)


def step(
    function: Callable[..., Any] | None = None,
    *,
    non_split_inputs: Iterable[str] = (),
    input_split_axes: Mapping[str, int] | None = None,
    detach_outputs: bool = True,
) -> Any:
    """Decorate a function that calls the model, and `model.backward`, on one batch: `@smp.step` or `@smp.step(...)`.

    Args:
        function: its tensor arguments (also inside lists, tuples, sets, mappings, or objects that have a method
            `smp_slice(num_mb, mb, axis)`) are cut into `microbatches` parts along dimension 0.
        non_split_inputs: names of arguments that go whole to every micro-batch.
        input_split_axes: the dimension to cut along, by argument name, where it is not 0.
        detach_outputs: return tensors without their graph.

    Raises:
        SMPValueError: no function, a name that is no argument of it, or options of a wrong type.
    """
    if function is not None and not callable(function):
        raise SMPValueError(
            f"smp.step decorates a function, not {checks.shown(function)}: write @smp.step or @smp.step(name=value)"
        )
    keep, axes = _names(non_split_inputs), _axes(input_split_axes)
    detach = checks.flag("smp.step", "detach_outputs", detach_outputs)
    if function is None:
        return functools.partial(step, non_split_inputs=keep, input_split_axes=axes, detach_outputs=detach)
    return StepFunction(function, keep, axes, detach)


def _names(given: Any) -> list[str]:
    # Not any iterable: a lone name is one too, of its letters.
    right = isinstance(given, (list, tuple, set, frozenset)) and all(isinstance(name, str) for name in given)
    if given is not None and not right:
        checks.refuse("smp.step", "non_split_inputs", given, "a list of names of arguments")
    return list(given or ())


def _axes(given: Any) -> dict[str, int]:
    if given is None:
        return {}
    right = isinstance(given, Mapping) and all(
        isinstance(name, str) and isinstance(axis, int) and not isinstance(axis, bool) for name, axis in given.items()
    )
    if not right:
        checks.refuse("smp.step", "input_split_axes", given, "a dictionary of dimensions by name of an argument")
    return dict(given)


def _run(body: Callable[[int], Any], microbatches: int) -> list[Any]:
    model = state.model
    if model is not None:
        model.begin_step()
    results: list[Any] = state.server.run_step(body, microbatches)
    if model is not None:
        model.end_step()
    return results


__all__ = ["StepFunction", "step"]
