"""From a CreateTrainingJob request to a finished run on this machine: validate, plan, run, collect."""
