"""Is the model a job left behind the one it says? Load it on the host and measure the test accuracy again.

    python verify.py ../../runs/digits-lightning/output/model.tar.gz channels/train

Prints both accuracies; exits with 1 if they differ, or if the measured one is below --at-least.
"""

import argparse
import json
import sys
import tarfile
from pathlib import Path
from typing import IO

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent / "source"))
from data import load_split
from model import DigitsNet, accuracy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path, help="model.tar.gz")
    parser.add_argument("channel", type=Path, help="the folder prepare.py wrote")
    parser.add_argument("--at-least", type=float, default=0.0, help="the accuracy that is expected")
    options = parser.parse_args()
    network = DigitsNet()
    with tarfile.open(options.archive) as archive:
        network.load_state_dict(torch.load(member(archive, "model.pt"), weights_only=True))
        claimed = json.load(member(archive, "metrics.json"))["test_accuracy"]
    images, labels = load_split(options.channel, "test")
    measured = accuracy(network, images, labels)
    print(f"test accuracy: {claimed:.4f} says the job, {measured:.4f} measured here on {len(labels)} images")
    # Another machine's arithmetic may tip one image; two would be another model.
    same = abs(claimed - measured) < 1.5 / len(labels)
    return 0 if same and measured >= options.at_least else 1


def member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    """Return a file of the archive, read in place: what else is in there touches no file of this machine."""
    try:
        stream = archive.extractfile(name)
    except KeyError:
        stream = None
    if stream is None:
        sys.exit(f"verify: {archive.name!s}: there is no file {name} in it")
    return stream


if __name__ == "__main__":
    sys.exit(main())
