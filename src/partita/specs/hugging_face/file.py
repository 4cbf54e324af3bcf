"""Reads a JSON file that holds one object. Knows nothing about what it says."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partita.errors import InputError


def load(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """The object in a file. Raises InputError on `model` where it cannot be read or holds no object."""
    try:
        config = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise InputError("model", os.fspath(path), f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError("model", os.fspath(path), "is not a text file in UTF-8") from None
    except (ValueError, RecursionError) as error:  # JSONDecodeError says the line and column
        raise InputError("model", os.fspath(path), f"is not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise InputError("model", os.fspath(path), "must hold one JSON object, as a config.json does")
    return config
