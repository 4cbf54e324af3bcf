"""What the checkpoint tests share: the real model, its oracle fixture, and tiny GGUF files."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints import tiny_gguf

from partita.checkpoints.gguf import open_gguf
from partita.checkpoints.open import packaged_gguf
from partita.checkpoints.protocol import StoredCheckpoint
from partita.checkpoints.tokenizer import Tokenizer


@pytest.fixture
def write_gguf(tmp_path: Path) -> tiny_gguf.WriteGGUF:
    return partial(tiny_gguf.write, tmp_path / "tiny.gguf")


@pytest.fixture(scope="session")
def smollm2() -> StoredCheckpoint:
    return open_gguf(packaged_gguf("smollm2-135m"))


@pytest.fixture(scope="session")
def tokenizer(smollm2: StoredCheckpoint) -> Tokenizer:
    assert smollm2.tokenizer is not None
    return smollm2.tokenizer


@pytest.fixture(scope="session")
def oracle() -> dict[str, Any]:
    """What transformers and torch made of the same file; `scripts/make_oracle_fixture.py` wrote it."""
    path = Path(__file__).parents[1] / "fixtures" / "smollm2_greedy.json"
    return json.loads(path.read_text(encoding="utf-8"))
