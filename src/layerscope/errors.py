"""Every error a user of layerscope can meet, under one root.

LayerscopeError
├── SelectError     nothing matches a name, pattern, kind or statistic
├── StateError      calls in the wrong order: a closed recorder, a step before its begin
├── StoreError      a run folder cannot be written or read
│   ├── BusyError   another live recorder writes into it
│   └── FormatError it is no run, is damaged, or was written by a newer layerscope
└── MissingError    an optional package is needed and not installed

A message names the thing, the reason and the way out. `LayerscopeWarning` is for what must not
stop a training: it is given once, and the training goes on.
"""


class LayerscopeError(Exception):
    """Root of all errors raised by layerscope."""


class SelectError(LayerscopeError):
    """Nothing matches a name, pattern, kind or statistic."""


class StateError(LayerscopeError):
    """A call that does not fit the state of the object, such as a step of a closed recorder."""


class StoreError(LayerscopeError):
    """A run folder cannot be written or read."""


class BusyError(StoreError):
    """Another live recorder writes into the run folder."""


class FormatError(StoreError):
    """A folder is no run, is damaged, or was written by a newer layerscope."""


class MissingError(LayerscopeError):
    """An optional package is needed and not installed."""


class LayerscopeWarning(UserWarning):
    """Something a user should know that must not stop a training."""
