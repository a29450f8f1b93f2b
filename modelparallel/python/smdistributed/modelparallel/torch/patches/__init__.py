"""Replacements for functions of torch that work on modules wherever they are placed."""
