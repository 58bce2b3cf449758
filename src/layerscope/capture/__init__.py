"""Live tensors → records, handed to a sink; knows nothing of disks."""
