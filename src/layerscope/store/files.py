"""The only module that opens files of a run: relative to an open folder, following no link, regular files only."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from layerscope.errors import FormatError

MOST_NAMES = 1_000_000  # in one folder; docs/format.md states it

_BELOW_HANDLES = os.open in os.supports_dir_fd  # Windows lacks it: there each path component is checked
_CLOSE = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a pipe would block until a process writes to it
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _CLOSE
_FILE = os.O_RDONLY | _NO_LINK | _NO_WAIT | _CLOSE
checksum = xxh3_64_intdigest
checksum_text = xxh3_64_hexdigest


def damaged(path: Path, reason: str, way_out: str = "Restore the file from a copy of the run.") -> FormatError:
    """The error for a damaged file."""
    return FormatError(f"{path} is damaged: {reason}. {way_out}")


class Directory:
    """An open folder of a run, and its files by name."""

    def __init__(self, path: Path, handle: int | None) -> None:
        self.path = path
        self._handle = handle

    def names(self) -> list[str]:
        """Names of the regular files, unordered."""
        return [entry.name for entry in self._entries() if entry.is_file(follow_symlinks=False)]

    def folders(self) -> list[str]:
        """Names of the folders, unordered."""
        return [entry.name for entry in self._entries() if entry.is_dir(follow_symlinks=False)]

    def problems(self) -> list[str]:
        """A message for each entry that is neither a regular file nor a folder; none of them is read."""
        entries = (entry for entry in self._entries() if not entry.is_dir(follow_symlinks=False))
        return [str(self._not_regular(entry.name)) for entry in entries if not entry.is_file(follow_symlinks=False)]

    def _entries(self) -> list[os.DirEntry[str]]:
        with os.scandir(self.path if self._handle is None else self._handle) as entries:
            listed = [entry for entry, _ in zip(entries, range(MOST_NAMES + 1), strict=False)]
        if len(listed) > MOST_NAMES:
            raise damaged(self.path, f"it holds more than {MOST_NAMES:,} files", "Remove what is not of the run.")
        return listed

    def stat(self, name: str) -> os.stat_result:
        """Size and times of a regular file."""
        target, below = self._target(name)
        return self._regular(name, os.stat(target, dir_fd=below, follow_symlinks=False))

    @contextmanager
    def open(self, name: str) -> Iterator[int]:
        """A handle for reading a regular file."""
        target, below = self._target(name)
        if below is None:
            self.stat(name)
        try:
            handle = os.open(target, _FILE, dir_fd=below)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # opening a socket fails with this error
                raise self._not_regular(name) from None
            raise
        try:
            self._regular(name, os.fstat(handle))
            yield handle
        finally:
            os.close(handle)

    def read(self, name: str, most: int) -> bytes:
        """The bytes of a file, at most `most`."""
        with self.open(name) as handle:
            size = os.fstat(handle).st_size
            if size > most:
                raise damaged(self.path / name, f"it has {size:,} bytes, more than the {most:,} that are allowed")
            return read_range(handle, 0, size)

    def create(self, name: str, *, anew: bool = False) -> int:
        """A handle for writing a new file; `anew` replaces an existing one."""
        if anew:
            self._forget(name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | _CLOSE
        return os.open(name, flags, 0o666, dir_fd=self._handle)

    def replace(self, name: str, content: bytes) -> None:
        """Replaces a file atomically: a reader sees the old one or the new one."""
        temporary = f"{name}{TEMPORARY}-{os.getpid()}"
        with os.fdopen(self.create(temporary, anew=True), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self.rename(temporary, name)

    def rename(self, old: str, new: str) -> None:
        """Renames a file and replaces an existing one."""
        os.rename(old, new, src_dir_fd=self._handle, dst_dir_fd=self._handle)
        self.sync()

    def unlink(self, name: str) -> None:
        """Removes a regular file. The caller has compared its checksum with the run's live.json."""
        self.stat(name)
        os.unlink(name, dir_fd=self._handle)

    def sync(self) -> None:
        """Syncs the folder, so that created and renamed files survive a power failure."""
        if self._handle is not None:
            os.fsync(self._handle)

    def make(self, name: str) -> None:
        """Creates a subfolder if it does not exist."""
        try:
            os.mkdir(name, dir_fd=self._handle)
        except FileExistsError:
            handle = _below(self.path / name, self._handle)  # says so if it is none
            if handle is not None:
                os.close(handle)

    def _forget(self, name: str) -> None:
        """Removes temporary files of earlier interrupted writes."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._handle)

    def _target(self, name: str) -> tuple[str | Path, int | None]:
        if name in ("", ".", "..") or "/" in name or os.sep in name or "\0" in name:
            raise damaged(self.path, f"{name!r} is not the name of a file")
        return (self.path / name, None) if self._handle is None else (name, self._handle)

    def _regular(self, name: str, status: os.stat_result) -> os.stat_result:
        if not stat.S_ISREG(status.st_mode):
            raise self._not_regular(name)
        return status

    def _not_regular(self, name: str) -> FormatError:
        return damaged(self.path / name, "it is a link or no regular file", "Remove it: links are not followed.")


TEMPORARY = ".aside"  # suffix of a temporary file before it is renamed


@contextmanager
def opened(folder: Path, *below: str) -> Iterator[Directory]:
    """A folder of a run, opened without following links below the run folder."""
    path, handle = folder, os.open(folder, _FOLDER) if _BELOW_HANDLES else None
    try:
        for name in below:
            path = path / name
            inner = _below(path, handle)
            if handle is not None:
                os.close(handle)
            handle = inner
        yield Directory(path, handle)
    finally:
        if handle is not None:
            os.close(handle)


def _below(path: Path, handle: int | None) -> int | None:
    try:
        if handle is not None:
            return os.open(path.name, _FOLDER | _NO_LINK, dir_fd=handle)
        if stat.S_ISDIR(path.lstat().st_mode) and not getattr(path.lstat(), "st_reparse_tag", 0):
            return None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
    raise damaged(path, "it is a link or no folder", "Remove it: links are not followed.")


def read_range(handle: int, start: int, size: int) -> bytes:
    """Bytes of a file from an offset; fewer at its end."""
    content = _some(handle, start, size)
    while 0 < len(content) < size and (more := _some(handle, start + len(content), size - len(content))):
        content += more
    return content


def _some(handle: int, start: int, size: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(handle, size, start)
    os.lseek(handle, start, os.SEEK_SET)
    return os.read(handle, size)


def read_buffer(handle: int, start: int, size: int) -> pa.Buffer:
    """The same in a buffer of Arrow's memory pool, which is reused: allocating memory costs more than a copy."""
    if not hasattr(os, "preadv"):
        return pa.py_buffer(read_range(handle, start, size))
    buffer, done = pa.allocate_buffer(size), 0
    while done < size and (read := os.preadv(handle, [memoryview(buffer)[done:]], start + done)):
        done += read
    return buffer.slice(0, done)
