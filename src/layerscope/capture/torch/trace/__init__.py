"""Every operation of a pass: intercepted, recorded, proved by executing it again, run again with changes."""
