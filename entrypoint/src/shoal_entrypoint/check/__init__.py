"""`train --check`: what this container sees of a job's hosts and of itself, and what to do about what is wrong.

It reads the same files and variables as `train`, starts nothing of the user's and writes no file. `summary` is the one
part that every job runs; nothing else here is imported on its way.
"""
