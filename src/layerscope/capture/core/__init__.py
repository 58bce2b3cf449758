"""What to record and when, and the records that are made of it: no framework."""
