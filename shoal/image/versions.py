"""The model of versions.yaml: what a row may say, and which combinations are possible.

Pure data: nothing here reads a file or knows Docker (`shoal.image.versions_file` reads).
"""

import datetime as dt
import difflib
from typing import Annotated, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from shoal.errors import ShoalError
from shoal.image import compatible

# Three numbers, as upstream publishes it: `2.13` would be a floor, not a version.
Release = Annotated[str, StringConstraints(pattern=r"^\d+\.\d+\.\d+$")]
# As long as its publisher made it: 9.1.0.70, 1.17.
Dotted = Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+)+$")]
# A row's name is the name of files and of tags.
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
PythonMinor = Annotated[str, StringConstraints(pattern=r"^3\.\d+$")]
CudaMinor = Annotated[str, StringConstraints(pattern=r"^\d+\.\d+$")]
Device = Literal["cpu", "gpu"]
Flavour = Literal["sagemaker", "ec2"]


class Strict(BaseModel):
    """A part of the file: nothing may be in it that is not in the model, and nothing changes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Base(Strict):
    """An operating system an image can begin from."""

    pull: str = Field(description="image to pull where a registry answers")
    suite: str = Field(description="Debian or Ubuntu suite to bootstrap where none does")
    python: PythonMinor = Field(description="the Python its archive has")
    openmpi: Release | None = Field(default=None, description="the Open MPI of its archive that images take")


class Published(Strict):
    """What the vendor's image of the same tag holds, for those who come from it. Nothing is built from this."""

    python: Release
    cuda: Release | None = None
    cudnn: Dotted | None = None
    nccl: Release | None = None
    efa: Release | None = Field(default=None, description="EFA installer")
    openmpi: Release | None = None
    ofi_nccl: Dotted | None = Field(default=None, description="aws-ofi-nccl")
    smddp: Release | None = Field(default=None, description="the vendor's smddp wheel; absent: it has none")
    size_mb: int | None = Field(default=None, description="the vendor's own size baseline, uncompressed")


class Row(Strict):
    """One image: everything in it that has a version."""

    torch: Release
    device: Device
    python: PythonMinor
    base: str
    flavours: tuple[Flavour, ...] = Field(min_length=1)
    cuda: CudaMinor | None = Field(default=None, description="CUDA of torch's wheel; rows of device gpu")
    cudnn: Dotted | None = Field(default=None, description="measured, where it is declared")
    nccl: Release | None = Field(default=None, description="measured, where it is declared")
    lightning: Release
    mpi4py: Release
    openmpi: Release
    size_mb: int = Field(
        gt=0, description="what the image may take uncompressed, in 10^6 bytes; 5% more fails its build"
    )
    ga: dt.date = Field(description="day the torch release became generally available")
    eop: dt.date = Field(description="end of patches")
    published: Published | None = None

    @model_validator(mode="after")
    def _possible(self) -> "Row":
        compatible.minor_of(self.torch)
        if self.device == "gpu" and self.cuda is None:
            raise ValueError("cuda: missing: a row of device gpu says which")
        for key in ("cuda", "cudnn", "nccl"):
            if self.device == "cpu" and getattr(self, key) is not None:
                raise ValueError(f"{key}: {getattr(self, key)}: a row of device cpu has none")
        compatible.check(self.torch, self.python, self.cuda)
        if self.eop <= self.ga:
            raise ValueError(f"eop: {self.eop}: not after ga {self.ga}")
        return self

    @property
    def smp(self) -> bool:
        """Whether the image has `smdistributed.modelparallel`: it is written for torch 2.0 and newer."""
        return compatible.minor_of(self.torch) >= compatible.FIRST_TORCH_OF_SMP

    @property
    def stem(self) -> str:
        """The row's tag without its flavour: `2.5.1-gpu-py311-cu124-ubuntu22.04`."""
        cuda = f"cu{self.cuda.replace('.', '')}-" if self.cuda else ""
        return f"{self.torch}-{self.device}-py{self.python.replace('.', '')}-{cuda}{self.base}"

    @property
    def torch_index(self) -> str | None:
        """The publisher's index that has this torch, where package registries do not."""
        return compatible.index(self.torch, self.cuda)

    def support(self, today: dt.date) -> Literal["planned", "supported", "ended"]:
        """Return where `today` lies in the row's support: from `ga` to `eop`, both included."""
        if today < self.ga:
            return "planned"
        return "supported" if today <= self.eop else "ended"


class Exclusion(Strict):
    """Rows that shall not be, and why."""

    torch: str | None = Field(default=None, description="version specifier, e.g. >=2.9")
    device: Device | None = None
    cuda: CudaMinor | None = None
    base: str | None = None
    reason: str = Field(min_length=1)

    @field_validator("torch")
    @classmethod
    def _is_specifier(cls, value: str | None) -> str | None:
        try:
            SpecifierSet(value or "")
        except InvalidSpecifier as error:
            raise ValueError(f"{value}: not a version specifier such as >=2.9") from error
        return value

    def matches(self, row: Row) -> bool:
        """Whether `row` is one of those."""
        if self.torch is not None and row.torch not in SpecifierSet(self.torch):
            return False
        return all(getattr(self, key) in (None, getattr(row, key)) for key in ("device", "cuda", "base"))


class Versions(Strict):
    """The whole file, rows with all they inherit filled in."""

    bases: dict[Name, Base]
    rows: dict[Name, Row]
    exclude: tuple[Exclusion, ...] = ()
    aliases: dict[Name, str] = {}

    @model_validator(mode="after")
    def _fits(self) -> "Versions":
        stems: dict[str, str] = {}
        for name, row in self.rows.items():
            for excluded in self.exclude:
                if excluded.matches(row):
                    raise ValueError(f"rows.{name}: excluded: {excluded.reason}")
            if row.base not in self.bases:
                raise ValueError(f"rows.{name}.base: {row.base!r} is not one of {', '.join(self.bases)}")
            # A row of Ubuntu has the Python of its tag, whatever the archive has: uv's builds make up for it.
            base = self.bases[row.base]
            if not row.base.startswith("ubuntu") and row.python != base.python:
                raise ValueError(f"rows.{name}.python: {row.python}: {row.base} has python {base.python} only")
            if base.openmpi is not None and row.openmpi != base.openmpi:
                raise ValueError(f"rows.{name}.openmpi: {row.openmpi}: {row.base} has openmpi {base.openmpi} only")
            if row.stem in stems:
                raise ValueError(f"rows.{name}: has the tag {row.stem} as rows.{stems[row.stem]} has")
            stems[row.stem] = name
        self._check_aliases()
        return self

    def _check_aliases(self) -> None:
        for alias, name in self.aliases.items():
            if name not in self.rows:
                raise ValueError(f"aliases.{alias}: {name!r}: no such row")
            if not self.rows[name].stem.startswith(f"{alias}-"):
                raise ValueError(f"aliases.{alias}: not the beginning of {self.rows[name].stem}, the tag of {name}")

    def row(self, name: str) -> Row:
        """Return the row called `name`.

        Raises:
            ShoalError: there is none.
        """
        if name not in self.rows:
            near = difflib.get_close_matches(name, self.rows, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ShoalError(
                f"versions.yaml: no row {name!r}{hint} (`shoal list` shows the {len(self.rows)} there are)"
            )
        return self.rows[name]

    def find(self, text: str) -> str:
        """Return the name of the row that `text` means: its name, an alias, or a tag, with or without its flavour.

        Raises:
            ShoalError: there is none.
        """
        tag = text.rpartition(":")[2]
        stem = tag.removesuffix("-sagemaker").removesuffix("-ec2")
        names = {**{row.stem: name for name, row in self.rows.items()}, **self.aliases}
        found = text if text in self.rows else names.get(tag) or names.get(stem) or text
        self.row(found)
        return found
