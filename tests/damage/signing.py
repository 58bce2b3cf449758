"""Makes the checksums of a changed file right again, as somebody who forges a run would; after docs/format.md."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from layerscope.store.part_index import whole_numbers

FRAME = struct.Struct("<8sQQQ")
HEAD = len('{"checksum": "0123456789abcdef",')


def sign_json(file: Path) -> None:
    """The checksum of a JSON file, over all that follows it."""
    rest = file.read_bytes()[HEAD:]
    file.write_bytes(f'{{"checksum": "{xxh3_64_hexdigest(rest)}",'.encode() + rest)


def frames(content: bytes) -> list[tuple[int, int]]:
    """Where the payload of each frame of a segment begins and ends."""
    found, place = [], 0
    while place + FRAME.size <= len(content):
        size = FRAME.unpack_from(content, place)[1]
        found.append((place + FRAME.size, place + FRAME.size + size))
        place += FRAME.size + size
    return found


def sign_segment(file: Path, places: list[tuple[int, int]]) -> None:
    """The checksums of the frames of a segment, whose places are those before the change."""
    content = bytearray(file.read_bytes())
    for start, end in places:
        content[start - FRAME.size : start] = frame_head(bytes(content[start:end]))
    file.write_bytes(content)


def frame_head(payload: bytes) -> bytes:
    """What stands before the payload of a frame."""
    head = FRAME.pack(b"\xabLSframe", len(payload), xxh3_64_intdigest(payload), 0)[:24]
    return head + xxh3_64_intdigest(head).to_bytes(8, "little")


def footer(content: bytes) -> bytes:
    """The end of a Parquet file that describes it."""
    return content[-int.from_bytes(content[-8:-4], "little") - 8 :]


def chunks(content: bytes) -> list[tuple[int, int]]:
    """Where each column chunk of a Parquet file begins, and its bytes."""
    about = pq.read_metadata(pa.BufferReader(content))
    columns = [
        about.row_group(group).column(at) for group in range(about.num_row_groups) for at in range(about.num_columns)
    ]
    return [
        (
            min(start for start in (column.dictionary_page_offset, column.data_page_offset) if start),
            column.total_compressed_size,
        )
        for column in columns
    ]


def sign_part(run: Path, table: str, file: str, places: list[tuple[int, int]], rows: int | None = None) -> None:
    """What live.json says of a part, so that it fits the file."""
    content, live = (run / "tables" / table / file).read_bytes(), run / "live.json"
    said = json.loads(live.read_bytes())
    about = [(size, xxh3_64_intdigest(content[start : start + size])) for start, size in places]
    for part in said["tables"][table]["parts"]:
        if part["file"] == file:
            part |= {"bytes": len(content), "footer": xxh3_64_hexdigest(footer(content))}
            part |= {
                "chunks": base64.b64encode(np.array(about, "<u8").tobytes()).decode(),
                "rows": part["rows"] if rows is None else rows,
            }
            if rows is not None:
                part["groups"] = base64.b64encode(row_groups(table, content).tobytes()).decode()
    rewrite(live, said)


def row_groups(table: str, content: bytes) -> npt.NDArray[np.int64]:
    """How many rows each row group has, and nothing of what they can be."""
    about = pq.read_metadata(pa.BufferReader(content))
    limits, columns = np.iinfo(np.int64), len(whole_numbers(table))
    rows = [about.row_group(group).num_rows for group in range(about.num_row_groups)]
    return np.array([[count, *[limits.min, limits.max] * columns] for count in rows], "<i8")


def rewrite(file: Path, content: dict[str, object]) -> None:
    """A JSON file with another content and the checksum of it."""
    others = {key: value for key, value in content.items() if key != "checksum"}
    file.write_text(f'{{"checksum": "{"0" * 16}",' + json.dumps(others)[1:])
    sign_json(file)


def sign_trace_file(folder: Path, name: str) -> None:
    """What trace.json says of a file beside it; of tensors also what the head of their file says of them."""
    file = folder / name
    content = file.read_bytes()
    said = json.loads((folder / "trace.json").read_bytes())
    if name.endswith(".safetensors"):
        content = content[: 8 + int.from_bytes(content[:8], "little")]
    said["checksums"][name] = xxh3_64_hexdigest(content)
    rewrite(folder / "trace.json", said)
