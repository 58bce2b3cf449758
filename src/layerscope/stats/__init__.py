"""Array → summary: the specification, the numpy reference, the C kernel, the framework adapters."""
