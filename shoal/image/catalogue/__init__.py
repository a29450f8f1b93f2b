"""Manifests -> one HTML page: which images there are, what is in each, how big, how long patched, how to use it."""
