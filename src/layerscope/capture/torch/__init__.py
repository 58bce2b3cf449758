"""The PyTorch side of capture: hooks on modules, parameters and optimizers."""
