"""What layerscope costs; docs/performance.md has the figures."""
