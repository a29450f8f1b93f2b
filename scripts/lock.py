"""requirements/*.in -> requirements/*.txt: the host's own Python packages, every version and hash chosen anew."""

from pathlib import Path

from shoal.image.lock import resolve

FOLDER = Path(__file__).parent.parent / "requirements"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


def main() -> None:
    """Lock host.in and dev.in; the latter builds on the former."""
    host = (FOLDER / "host.in").read_text()
    dev = (FOLDER / "dev.in").read_text().replace("-r host.in", host)
    for name, packages in (("host", host), ("dev", dev)):
        resolve(packages, FOLDER / f"{name}.txt", "3.11", "make lock", TORCH_INDEX)


if __name__ == "__main__":
    main()
