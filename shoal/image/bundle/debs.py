"""The part of Debian's archive that a row's apt steps need, laid out as the archive itself.

Why a part of the archive and not a repository made anew: the signed index stays what Debian published, so that apt in
an offline build checks the same chain as ever, from Debian's key in the base to the hash of each package. Nothing need
be marked as trusted.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from urllib.parse import unquote

from shoal.errors import ShoalError
from shoal.image import buildkit, host_settings
from shoal.image.bundle.dockerfile import DEBS_TARGET, only_apt
from shoal.image.progress import Progress


@dataclass(frozen=True)
class Index:
    """One package index, as apt knows it: where it is in the archive, and in which file of apt's lists."""

    repository: str
    release: str
    component: str
    key: str
    file: str

    @property
    def packages_path(self) -> str:
        """Return the index's place in its repository."""
        return f"dists/{self.release}/{self.key}{PurePosixPath(self.file).suffix}"

    @property
    def signed_file(self) -> str:
        """Return the file of apt's lists that is signed and has this index's hash."""
        return self.file.rpartition("_" + self.key.replace("/", "_"))[0] + "_InRelease"


def collect(dockerfile: str, suite: str, root: Path, log: Path, progress: Progress, into: Path) -> None:
    """Run the apt steps of `dockerfile` with this host's settings, and lay out what they downloaded in `into`.

    Raises:
        ShoalError: apt could not download something.
    """
    with TemporaryDirectory(prefix="shoal-debs-", dir=root / ".shoal") as folder:
        path = Path(folder) / "Dockerfile"
        path.write_text(only_apt(dockerfile))
        output = Path(folder) / "out"
        with host_settings.secrets(suite) as secrets:
            # Anew each time: a layer of last month has last month's packages.
            arguments = ["--no-cache", "--file", str(path), "--output", f"type=local,dest={output}", *secrets]
            buildkit.build([*arguments, str(root)], log, progress)
        for stage in sorted(output.iterdir()):
            lay_out(stage, into)


def lay_out(downloaded: Path, into: Path) -> None:
    """Arrange one stage's lists and packages (see images/scripts/apt-download.sh) as an archive in `into`.

    Raises:
        ShoalError: the lists have no signed index, so that apt could check nothing.
    """
    indexes = [Index(*line.split("|")) for line in (downloaded / "targets").read_text().splitlines()]
    folders = {one: str(number) for number, one in enumerate(dict.fromkeys(index.repository for index in indexes))}
    for index in indexes:
        repository = into / folders[index.repository]
        lists = downloaded / "lists"
        signed = lists / PurePosixPath(index.signed_file).name
        if not signed.is_file():
            raise ShoalError(f"apt: {index.release}: no signed index (InRelease) was downloaded", exit_code=1)
        _copy(signed, repository / "dists" / index.release / "InRelease")
        _copy(lists / PurePosixPath(index.file).name, repository / index.packages_path)
    for file, place in archive_places((downloaded / "uris").read_text(), folders):
        _copy(downloaded / "archives" / file, into / place)
    lines = [f"deb file:{DEBS_TARGET}/{folders[one.repository]} {one.release} {one.component}\n" for one in indexes]
    (into / "sources.list").write_text("".join(dict.fromkeys(lines)))


def archive_places(uris: str, folders: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Return the file name and the place in the archive of each package in apt's `--print-uris`.

    A line is `'http://mirror/debian/pool/main/a/a_1%2b2_amd64.deb' a_1+2_amd64.deb 1234 SHA256:...`.
    """
    for line in uris.splitlines():
        quoted, file, *_ = line.split()
        uri = quoted.strip("'")
        repository = max((one for one in folders if uri.startswith(one)), key=len)
        yield file, f"{folders[repository]}/{unquote(uri[len(repository) :]).lstrip('/')}"


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
