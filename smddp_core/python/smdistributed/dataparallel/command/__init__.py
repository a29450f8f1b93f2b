"""The command ``smddp``: what is installed, and how fast it can be made here."""
