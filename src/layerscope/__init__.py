"""An oscilloscope for neural networks."""
