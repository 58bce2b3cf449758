"""Nested graphs of modules and operations: nodes, edges, their order and their coordinates."""
