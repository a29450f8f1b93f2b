# ruff: noqa: N999 (the name of the compiled module)
from torch._C._distributed_c10d import Backend, Store

__version__: str
torch_version: str

def create(
    store: Store,
    rank: int,
    size: int,
    timeout_seconds: float,
    name: str,
    fallback: Backend,
    settings: dict[str, str] = ...,
) -> Backend: ...
def settings() -> dict[str, str]: ...
def interfaces() -> list[tuple[str, str]]: ...
def stop_all() -> None: ...
def address() -> str: ...
def path(backend: Backend) -> str: ...
