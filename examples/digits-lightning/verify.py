"""Is the model a job left behind the one it says? Load it on the host and measure the test accuracy again.

    python verify.py ../../runs/digits-lightning/output/model.tar.gz channels/train

Prints both accuracies; exits with 1 if they differ.
"""

import argparse
import json
import sys
import tarfile
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent / "source"))
from data import load_split
from model import DigitsNet, accuracy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path, help="model.tar.gz")
    parser.add_argument("channel", type=Path, help="the folder prepare.py wrote")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(options.archive) as archive:
            archive.extractall(folder, filter="data")
        network = DigitsNet()
        network.load_state_dict(torch.load(Path(folder) / "model.pt", weights_only=True))
        claimed = json.loads((Path(folder) / "metrics.json").read_text())["test_accuracy"]
    images, labels = load_split(options.channel, "test")
    measured = accuracy(network, images, labels)
    print(f"claimed {claimed:.4f} measured {measured:.4f}")
    # Another machine's arithmetic may tip one image; two would be another model.
    return 0 if abs(claimed - measured) < 1.5 / len(labels) else 1


if __name__ == "__main__":
    sys.exit(main())
