"""Plain records, names, patterns, number formats and the specification of a summary: no framework, numpy only."""
