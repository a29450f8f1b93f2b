"""Sending a job to a cluster or a cloud, and asking there how it is."""
