"""Tables in Parquet files, as hubs keep data sets, read a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.text import first_line

ROWS_AT_ONCE = 256


def is_table(path: Path) -> bool:
    """Whether a file is a Parquet table, by its name."""
    return path.suffix.lower() == ".parquet"


def stream_table(path: Path, key: str = "env_config.data") -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of a table as records, each with its place in words (``file, row 3``).

    Raises: ConfigError: for a file that cannot be read.
    """
    import pyarrow  # comes with Ray
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as table:
            for batch in table.iter_batches(ROWS_AT_ONCE):
                for record in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", record
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, LookupError) as error:
        why = f"{path} is no table in Parquet's form that can be read ({first_line(error)})"
        raise ConfigError(key, f"{why}; name a whole one, or a file of JSON lines") from None
