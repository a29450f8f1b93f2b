"""What the launcher of a training job looks for; scripts use `smdistributed.modelparallel.torch`."""
