"""`python -m shoal`."""

from shoal.cli import main

main()
