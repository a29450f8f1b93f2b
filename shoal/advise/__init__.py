"""Arithmetic before a job: how fast its storage must be, and which learning rate its batch wants."""
