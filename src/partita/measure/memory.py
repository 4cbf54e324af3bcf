"""What a compiled step takes of a device's memory, in the form a prediction has. Knows nothing about time."""

from __future__ import annotations

from typing import Any


def compiled_bytes(compiled: Any) -> int:
    """Bytes per device of a compiled JAX step: arguments, results and what it needs beside; what is donated
    counts once."""
    found = compiled.memory_analysis()
    return (
        found.argument_size_in_bytes
        + found.output_size_in_bytes
        + found.temp_size_in_bytes
        - found.alias_size_in_bytes
    )
