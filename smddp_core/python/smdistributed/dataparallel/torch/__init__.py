"""The PyTorch side. Importing ``torch_smddp`` from here registers the backend; this package alone does nothing."""
