"""Trainings with something to find in them: `layerscope demo`."""
