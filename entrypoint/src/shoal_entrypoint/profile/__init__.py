"""What a host's hardware does while a job runs, as JSON lines, unless SHOAL_PROFILE=0."""
