"""Serves, lists and opens many runs with few file handles. Run as a process by the tests; prints JSON."""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import time

import httpx

from layerscope.server.serve import PageServer
from tests.damage.wire import decoded

ASKED = ("sites", "timeline", "scalar?series=0&stat=mean", "histogram?series=0&axis=linear", "graph")


def main(folder: str, handles: int, opened: int) -> None:
    """List all runs, open some, and list them again."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (handles, handles))
    logging.disable()
    found: dict[str, object] = {}
    with PageServer(folder, port=0) as server, httpx.Client(base_url=server.address, timeout=300) as client:
        for look in ("first", "second"):
            began = time.monotonic()
            runs = decoded(client.get("api/runs").content)["runs"]
            found |= {f"{look}_s": time.monotonic() - began, "listed": len(runs)}
            found["unreadable"] = [run["problem"] for run in runs if run["status"] == "unreadable"]
            found["lacking"] = [run["name"] for run in runs if run["last_step"] is None]
            names = [run["name"] for run in runs]
            answers = [
                client.get(f"api/run/{name}/{what}").status_code
                for name in names[:: max(len(names) // opened, 1)]
                for what in ASKED
            ]
            found["failed"] = sum(code != 200 for code in answers)
            found["open"] = len(os.listdir("/dev/fd"))  # noqa: PTH208  names alone
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
