"""Traces of a forward pass: every operation is intercepted, recorded, validated, and can be rerun with edits."""
