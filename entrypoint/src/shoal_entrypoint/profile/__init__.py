"""What a host's hardware does while a job runs, as JSON lines: on request only (SHOAL_PROFILE=1)."""
