"""Models of the Hugging Face Hub, by repo id: fetched once, then read from its cache.

Knows which files are read, and nothing about what is in them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from partita.errors import InputError

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_CONFIG = ("config.json", "partita.json")
_ALL = (
    *_CONFIG,
    "generation_config.json",
    *("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"),
)
"""The files that are read of a repository, and so fetched."""


def is_repo_id(text: str) -> bool:
    """Whether a text has the form of a repo id, such as "org/name"."""
    return _REPO.fullmatch(text) is not None and not text.lower().endswith((".gguf", ".json"))


def fetch(repo: str, weights: bool = True) -> Path:
    """The folder of a repository, fetched unless it is in the cache, with progress bars on a terminal.

    weights: False for what a plan needs, its configuration alone.

    Raises InputError where there is no such repository, no access to it, or no network and no cached copy.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        return Path(snapshot_download(repo, allow_patterns=list(_ALL if weights else _CONFIG)))
    except GatedRepoError:
        reason = "its owner grants access on request; ask there, then log in with `hf auth login`"
    except RepositoryNotFoundError:
        reason = "no such folder here, and no public model of this name on the Hugging Face Hub"
    except HFValidationError:
        reason = "no such folder here, and not a name that the Hugging Face Hub could have"
    except LocalEntryNotFoundError:
        reason = (
            "no such folder here, and the Hugging Face Hub cannot be reached; give a folder or a .gguf file"
        )
    except Exception as error:  # of the disk, or of the library's client of the network, which has its own
        problem = " ".join(str(error).split())
        reason = f"could not be fetched from the Hugging Face Hub ({problem:.200})"
    raise InputError("model", repo, reason)
