"""Views → pages: the Starlette application, its live channel and the wire types."""
