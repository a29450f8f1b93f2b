"""Shoal on the host: build training images, run training jobs, report what happened."""
