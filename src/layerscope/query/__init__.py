"""Run → tables."""
