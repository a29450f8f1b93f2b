"""Helpers for tests of scripts that use the library."""
