"""A process that does nothing but serve stays small."""

from __future__ import annotations

import subprocess
import sys

SERVES = """
import sys
from layerscope.server.background import give_memory_back, leave_pandas_out
give_memory_back()
leave_pandas_out()
import numpy as np, pyarrow as pa
for _ in range(3):
    assert pa.chunked_array([pa.array(np.arange(1000.0))]).to_numpy().sum() == 499500
large = np.ones(50_000_000)
del large
own = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))
print("pandas" in sys.modules, pa.default_memory_pool().backend_name, own < 200_000)
"""


def test_pandas_is_not_loaded_and_memory_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", SERVES], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "system", "True"]
