"""Only what pyproject.toml cannot say: the host name shim, a library without Python in it."""

from setuptools import Extension, setup

# Optional: where there is no compiler, `train` installs all the same and starts ranks without it.
setup(ext_modules=[Extension("shoal_entrypoint._hostname", ["src/shoal_entrypoint/hostname.c"], optional=True)])
