"""requirements/*.in -> requirements/*.txt: the host's own Python packages, every version and hash chosen anew."""

import subprocess
from pathlib import Path

import uv

from shoal.image.lock import resolve

FOLDER = Path(__file__).parent.parent / "requirements"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


def main() -> None:
    """Lock host.in, dev.in, which builds on it, SageMaker's packages, and clients.in, which is put beside dev.in."""
    host = (FOLDER / "host.in").read_text()
    dev = (FOLDER / "dev.in").read_text().replace("-r host.in", host)
    for name, packages in (("host", host), ("dev", dev)):
        resolve(packages, FOLDER / f"{name}.txt", "3.11", "make lock", TORCH_INDEX)
    for name in ("sdk2", "sdk3", "smdebug"):
        resolve((FOLDER / f"{name}.in").read_text(), FOLDER / f"{name}.txt", "3.11", "make lock", None)
    options = ["--no-deps", "--generate-hashes", "--no-header", "--upgrade", "--python-version", "3.11", "--quiet"]
    lock = ["-o", str(FOLDER / "clients.txt")]
    subprocess.run([uv.find_uv_bin(), "pip", "compile", *options, str(FOLDER / "clients.in"), *lock], check=True)


if __name__ == "__main__":
    main()
