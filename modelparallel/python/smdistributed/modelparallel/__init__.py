"""Model parallelism for PyTorch: `import smdistributed.modelparallel.torch as smp`."""

# Clients compare it with releases of the original API ("1.10" and later is asked for); the last one is 1.15.0.
__version__ = "1.15.0"
