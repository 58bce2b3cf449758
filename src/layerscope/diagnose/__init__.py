"""Tables → findings: what goes wrong in a training, where, since when, why, and what to do."""
