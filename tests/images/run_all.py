"""Runs tests/images for each image that today's sources make and the engine has: run_all.py [PYTEST-ARGUMENT...].

One table at the end; fails if any image failed, or if there is none.
"""

import subprocess
import sys
from pathlib import Path

from shoal import engine
from shoal.image.build import content_hash
from shoal.image.names import names
from shoal.image.versions_file import load

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Test one image after the other."""
    client, versions = engine.connect(), load(ROOT / "versions.yaml")
    there = {tag for image in client.images.list(name="pytorch-training") for tag in image.tags}
    results: list[tuple[str, int]] = []
    for name, row in versions.rows.items():
        for flavour in row.flavours:
            if not any(tag.startswith(names(versions, name, "", flavour).full) for tag in there):
                continue
            image = names(versions, name, content_hash(versions, name, ROOT), flavour).immutable
            if image in there:
                print(f"{image}:", file=sys.stderr)
                command = [sys.executable, "-m", "pytest", "-q", str(ROOT / "tests" / "images")]
                command += ["--row", name, "--flavour", flavour, *sys.argv[1:]]
                results.append((image, subprocess.run(command, check=False).returncode))
    for image, code in results:
        print(f"{'failed' if code else 'passed'}  {image}")
    if not results:
        print("no image of today's sources: run `make image ROW=...`", file=sys.stderr)
    return int(not results or any(code for _, code in results))


if __name__ == "__main__":
    sys.exit(main())
