"""versions.yaml + images/templates/ -> one Dockerfile a row, committed in images/rendered/."""

from pathlib import Path

import jinja2

from shoal.errors import ShoalError
from shoal.image.versions import Versions


def base_reference(base: str) -> str:
    """Return the local tag under which `shoal.image.base` keeps the operating system `base`."""
    return f"shoal-base:{base}"


def render(versions: Versions, name: str, root: Path) -> str:
    """Return the Dockerfile of row `name`; `root` is the repository.

    Raises:
        ShoalError: there is no such row.
    """
    row = versions.row(name)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(root / "images" / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    template = environment.get_template("Dockerfile.j2")
    return template.render(name=name, row=row, base=versions.bases[row.base], base_image=base_reference(row.base))


def rendered_path(name: str, root: Path) -> Path:
    """Return where the Dockerfile of row `name` is committed."""
    return root / "images" / "rendered" / f"{name}.Dockerfile"


def check(versions: Versions, root: Path) -> None:
    """Compare the committed Dockerfiles with what the template gives now.

    Raises:
        ShoalError: one differs, is missing, or belongs to no row.
    """
    expected = {rendered_path(name, root): render(versions, name, root) for name in versions.rows}
    stale = [path.name for path, text in expected.items() if not path.is_file() or path.read_text() != text]
    orphans = [path.name for path in (root / "images" / "rendered").glob("*.Dockerfile") if path not in expected]
    if stale or orphans:
        problems = [f"{name} is out of date" for name in stale] + [f"{name} belongs to no row" for name in orphans]
        raise ShoalError(f"images/rendered: {'; '.join(problems)}: run `shoal render --all`", exit_code=1)
