"""The `layerscope` command."""
