"""Data parallelism for PyTorch.

``import smdistributed.dataparallel.torch.torch_smddp`` registers the torch.distributed backend ``smddp``.
"""

__version__ = "0.1.0"
