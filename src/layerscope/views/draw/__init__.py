"""Graphs drawn as SVG, PNG and DOT."""
