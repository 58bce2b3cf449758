"""Every error that layerscope raises, under one root. Each is also the built-in class that people catch.

LayerscopeError
├── ArgumentError   ValueError    a value that a parameter cannot take
├── SelectError     KeyError      nothing matches a name, pattern, kind or statistic
├── StateError      RuntimeError  a call at the wrong time: on a closed recorder, a step before its begin
├── StoreError      RuntimeError  a run folder cannot be written or read
│   ├── BusyError                 another live recorder writes into it
│   └── FormatError ValueError    it is not a run, is damaged, or was written by a newer layerscope
└── MissingError    ImportError   an optional package is needed and not installed

A message names the thing, the reason and the way out. `LayerscopeWarning` reports what must not
stop a training: layerscope warns once, and the training goes on.
"""


class LayerscopeError(Exception):
    """Root of all errors raised by layerscope."""


class ArgumentError(LayerscopeError, ValueError):
    """A value that a parameter cannot take."""


class SelectError(LayerscopeError, KeyError):
    """Nothing matches a name, pattern, kind or statistic."""

    def __str__(self) -> str:
        return Exception.__str__(self)  # KeyError would put the message in quotation marks


class StateError(LayerscopeError, RuntimeError):
    """A call that does not fit the state of the object, such as a step of a closed recorder."""


class StoreError(LayerscopeError, RuntimeError):
    """A run folder cannot be written or read."""


class BusyError(StoreError):
    """Another live recorder writes into the run folder."""


class FormatError(StoreError, ValueError):
    """A folder is not a run, is damaged, or was written by a newer layerscope."""


class MissingError(LayerscopeError, ImportError):
    """An optional package is needed and not installed."""


class LayerscopeWarning(UserWarning):
    """Something a user should know that must not stop a training."""
