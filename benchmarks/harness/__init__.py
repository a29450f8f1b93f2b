"""Runs collective libraries side by side on one machine: which is faster, by how much, and how near the limit?"""
