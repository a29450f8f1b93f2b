"""Jobs on SageMaker itself."""
