"""The run folder: its format (docs/format.md), the writer thread, the reader, compaction."""
