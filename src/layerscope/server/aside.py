"""Work of the server in another process."""

from __future__ import annotations

import os
import subprocess

GIVES_WAY = 19  # priority of a process: the lowest


def run_aside(command: list[str]) -> subprocess.CompletedProcess[str]:
    """What a command said that gave way to the server and a browser: both have much to do when a page is opened."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="backslashreplace"
    ) as process:
        if hasattr(os, "setpriority"):
            os.setpriority(os.PRIO_PROCESS, process.pid, GIVES_WAY)
        out, err = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, err)
