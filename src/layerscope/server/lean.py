"""What keeps a process that does nothing but serve small; not for a process that somebody else works in."""

from __future__ import annotations

import ctypes
import sys

import pyarrow as pa

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENAS = -1, -3, -8  # numbers of mallopt
_LARGE = 1 << 23  # bytes that are taken from the system by themselves, and given back at once: each page of them costs
_KEPT = 1 << 26  # of smaller ones, what requests need again and again, until it is quiet: new pages cost as much time


def give_memory_back() -> None:
    """Have what a large answer took returned to the system when it is sent.

    By itself the C library keeps what was freed, for each thread: hundreds of megabytes after a few heat maps.
    """
    pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own keeps more still
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        for option, value in ((_ARENAS, 2), (_MMAP_THRESHOLD, _LARGE), (_TRIM_THRESHOLD, _KEPT)):
            library.mallopt(option, value)


def tidy() -> None:
    """Return what lies free between what is in use, if this is a process whose memory is given back."""
    given_back = pa.default_memory_pool().backend_name == "system"
    if given_back and sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


class _NoPandas:
    """Says to `import` that there is no pandas."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Nothing, or the error of a module that is not installed."""
        if name == "pandas":
            raise ModuleNotFoundError(f"A process that serves the page has no {name}.", name=name)


def leave_pandas_out() -> None:
    """Spare the 33 MB of pandas, which Arrow loads for the first array it meets, where there is one."""
    sys.meta_path.insert(0, _NoPandas())
