"""`shoal serve`: an endpoint that speaks the SageMaker API for training jobs and runs them with `shoal run`."""
