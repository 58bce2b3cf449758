"""How long `import layerscope` takes, and what it loads: fresh processes, against an empty one in the same run."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

REPEATS = 15


def seconds(code: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    empty, ours = [], []
    for _ in range(REPEATS):
        empty.append(seconds("pass"))
        ours.append(seconds("import layerscope"))
    added_ms = 1e3 * (statistics.median(ours) - statistics.median(empty))
    row = {"what": "`import layerscope`, beyond an empty process", "measured": f"{added_ms:.1f} ms", "limit": "60 ms"}
    print(" | ".join(row.values()))
    if options.json:
        options.json.write_text(json.dumps([row]))


if __name__ == "__main__":
    main()
