"""Write the UCI handwritten digits (1,797 images of 8 x 8, they ship with scikit-learn) as the channel `train`.

    python prepare.py channels/train

Runs on the host, needs no network. The split is the same every time: 1,257 images to train on, 180 to validate with,
360 to test with.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

SPLITS = {"train": slice(0, 1257), "validation": slice(1257, 1437), "test": slice(1437, 1797)}

README = """The UCI handwritten digits, as scikit-learn ships them, shuffled with numpy's default_rng(0).
train.npz (1257), validation.npz (180), test.npz (360): `images` uint8 [n, 8, 8] from 0 to 16, `labels` uint8 [n].
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the channel's folder; made if it is not there")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images, labels = digits.images.astype(np.uint8)[order], digits.target.astype(np.uint8)[order]
    for name, part in SPLITS.items():
        np.savez_compressed(folder / f"{name}.npz", images=images[part], labels=labels[part])
    (folder / "README").write_text(README)
    print(f"{len(labels)} images in {folder}: " + ", ".join(f"{n} {len(labels[p])}" for n, p in SPLITS.items()))


if __name__ == "__main__":
    main()
