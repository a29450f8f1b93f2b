"""Write docs/smp-api.md, the page of smp's public API, from its signatures and docstrings.

    python scripts/smp_api.py            # writes the page
    python scripts/smp_api.py --check    # exit code 1 where the page is not what it would write

Every name of `__all__` is on the page: one that no section names comes under "More".
"""

from __future__ import annotations

import enum
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "smp-api.md"
# This tree's sources, whatever is installed.
sys.path.insert(0, str(ROOT / "modelparallel" / "python"))

import smdistributed.modelparallel.torch as smp  # noqa: E402
from smdistributed.modelparallel.torch import exceptions  # noqa: E402

SECTIONS = {
    "Start and train": [
        "init",
        "shutdown",
        "step",
        "StepOutput",
        "DistributedModel",
        "DistributedOptimizer",
        "clip_grad_norm_",
        "num_microbatches",
    ],
    "Place modules": [
        "partition",
        "set_partition",
        "explain",
        "model_creation",
        "delay_param_initialization",
        "is_tracing",
    ],
    "Save and resume": ["save", "load", "save_checkpoint", "resume_from_checkpoint"],
    "Tensor parallelism": [
        "tensor_parallelism",
        "set_tensor_parallelism",
        "tp_register",
        "tp_register_with_module",
        "nn",
    ],
    "Activations": ["set_activation_checkpointing"],
    "Half precision and optimizers": ["amp", "optimizers"],
    "Ranks and groups": [
        "CommGroup",
        "RankType",
        *(f"{kind}{what}" for kind in ("", "local_", "mp_", "dp_", "pp_", "tp_", "rdp_") for what in ("rank", "size")),
        *(f"get_{kind}_group" for kind in ("mp", "dp", "pp", "tp", "rdp")),
        *(f"get_{kind}_process_group" for kind in ("world", "mp", "dp", "pp", "tp", "rdp")),
    ],
    "Objects between ranks": ["send", "recv_from", "broadcast", "allgather", "barrier", "mp_barrier", "dp_barrier"],
    "State": ["is_initialized", "state"],
}
HEAD = """\
<!-- Written by scripts/smp_api.py from the docstrings; change those. -->
# API of smp

`import smdistributed.modelparallel.torch as smp`. Begin with [the tutorial](smp.md); it has the parameters of the
configuration too. Errors are in `smdistributed.modelparallel.torch.exceptions` ([below](#errors)).
"""
_LIST_TITLES = ("Args", "Raises", "Attributes", "Returns")


def page() -> str:
    """The whole page."""
    named = {name for names in SECTIONS.values() for name in names}
    more = [name for name in smp.__all__ if name not in named and not isinstance(getattr(smp, name), enum.Enum)]
    parts = [HEAD]
    for title, names in {**SECTIONS, "More": more}.items():
        if names:
            parts += [f"## {title}\n", *(entry for name in names for entry in entries(f"smp.{name}", found(name)))]
    parts += ["## Errors\n", *(error_entry(getattr(exceptions, name)) for name in exceptions.__all__)]
    return "\n".join(parts).rstrip() + "\n"


def found(name: str) -> Any:
    """The public object of that name.

    Raises:
        SystemExit: there is none: a section above names what is gone.
    """
    if name not in smp.__all__:
        raise SystemExit(f"smp_api: SECTIONS names {name!r}, which smp.__all__ has not")
    return getattr(smp, name)


def entries(name: str, thing: Any) -> Iterator[str]:
    """What the page says of one object; of a module, of each of its public names."""
    if isinstance(thing, types.ModuleType):
        for member in sorted(getattr(thing, "__all__", None) or own_names(thing)):
            child = getattr(thing, member)
            if not isinstance(child, types.ModuleType):
                yield from entries(f"{name}.{member}", child)
    elif isinstance(thing, enum.EnumMeta):
        members = ", ".join(f"`{member}`" for member in thing.__members__)
        short = [f"`smp.{member}`" for member in thing.__members__ if member in smp.__all__]
        also = f" Also as {', '.join(short)}." if short else ""
        yield f"### {name}\n\n{text(thing)}\n\nMembers: {members}.{also}\n"
    elif inspect.isclass(thing):
        yield f"### {name}\n\n```python\n{name}{signature(thing)}\n```\n\n{text(thing)}\n"
        yield from (member_entry(member, value) for member, value in members_of(thing))
    elif callable(thing):
        yield f"### {name}\n\n```python\n{name}{signature(thing)}\n```\n\n{text(thing)}\n"
    else:
        yield f"### {name}\n\n{text(type(thing))}\n"


def own_names(module: types.ModuleType) -> list[str]:
    """The public names that a module without `__all__` defines itself."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__ and inspect.isclass(value)
    ]


def members_of(owner: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that a class documents itself, in their order."""
    for name, value in vars(owner).items():
        if not name.startswith("_") and inspect.getdoc(value) and callable(getattr(value, "fget", value)):
            yield name, value


def member_entry(name: str, value: Any) -> str:
    """A method or a property."""
    call = "" if isinstance(value, property) else signature(value, method=True)
    return f"- **`.{name}{call}`**\n\n{textwrap.indent(text(value), '  ')}\n"


def error_entry(error: type) -> str:
    """An error with its parents."""
    parents = ", ".join(f"`{parent.__name__}`" for parent in error.__bases__)
    return f"### {error.__name__}\n\nA {parents}. {text(error)}\n"


def signature(thing: Any, *, method: bool = False) -> str:
    """The signature on one line, or a parameter a line where that would be long."""
    shown = inspect.signature(thing)
    parameters = list(shown.parameters.values())[1 if method else 0 :]
    words: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in words and not any(w.startswith("*") for w in words):
            words.append("*")
        words.append(_parameter(parameter))
    back = "" if inspect.isclass(thing) or shown.return_annotation is shown.empty else f" -> {shown.return_annotation}"
    line = f"({', '.join(words)}){back}"
    if len(line) <= 90 or method:
        return line
    return "(\n" + "".join(f"    {word},\n" for word in words) + f"){back}"


def _parameter(parameter: inspect.Parameter) -> str:
    word = parameter.name
    if parameter.kind is parameter.VAR_POSITIONAL:
        word = f"*{word}"
    elif parameter.kind is parameter.VAR_KEYWORD:
        word = f"**{word}"
    if parameter.annotation is not parameter.empty:
        word += f": {parameter.annotation}"
    if parameter.default is parameter.empty:
        return word
    default = parameter.default
    # A module's or a class's own repr has a path or an address in it.
    shown = str(default) if isinstance(default, enum.Enum) else getattr(default, "__name__", None) or repr(default)
    return f"{word} = {shown}"


def text(thing: Any) -> str:
    """A docstring as Markdown: its lists of arguments and errors become lists.

    Raises:
        SystemExit: there is none.
    """
    doc = inspect.getdoc(thing)
    if not doc:
        raise SystemExit(f"smp_api: {thing!r} has no docstring")
    blocks = []
    for block in re.split(r"\n\s*\n", doc):
        title, _, rest = block.partition(":\n")
        blocks.append(_list(title, rest) if title in _LIST_TITLES and rest else block)
    return "\n\n".join(blocks)


def _list(title: str, rest: str) -> str:
    items: list[str] = []
    for line in textwrap.dedent(rest).splitlines():
        if line.startswith(" ") and items:
            items[-1] += " " + line.strip()
        else:
            items.append(line)
    bullets = []
    for item in items:
        name, colon, meaning = item.partition(": ")
        bullets.append(f"- `{name}`: {meaning}" if colon else f"- {item}")
    return f"{title}:\n\n" + "\n".join(bullets)


def main() -> int:
    """Write the page, or say that it is not current."""
    made = page()
    if "--check" in sys.argv[1:]:
        if PAGE.exists() and PAGE.read_text() == made:
            return 0
        print("docs/smp-api.md is not what the docstrings say: run python scripts/smp_api.py", file=sys.stderr)
        return 1
    PAGE.write_text(made)
    print(f"{PAGE.relative_to(ROOT)}: {made.count(chr(10))} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
