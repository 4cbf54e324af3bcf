"""What the command line's tests share: running it in this process, and a tiny model to run."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints import tiny_gguf

from partita.cli.main import run


@dataclass(frozen=True)
class Ran:
    """What a command line did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one value on standard output; nothing else may be there, nor anything on standard error."""
        assert self.err == ""
        assert self.out.count("\n") == 1
        return json.loads(self.out, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))


Partita = Callable[..., Ran]
"""Runs `partita` with these arguments."""


@pytest.fixture
def partita(capsys: pytest.CaptureFixture[str]) -> Partita:
    def ran(*arguments: object) -> Ran:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    return ran


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers with 12 tokens and a context of 64, as a .gguf file."""
    return tiny_gguf.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A folder with the config.json of a small Llama."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return tmp_path
