"""From what a job's hosts measured to one page: what the hardware did, which rule fired, what to change."""
