"""A model and requests far larger than the memory that a process may take: one line, before it is taken.

The process has a limit of its own on data (RLIMIT_DATA), which Linux holds it to; the file is all holes.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Partita
from tests.measure.test_clock import CLUSTER
from tests.sizes import full

from partita.checkpoints.names import HUGGING_FACE
from partita.engine import free_memory, memory
from partita.specs.hugging_face import model_from_config
from partita.specs.toml import cluster_toml

LIMIT = 2 * 10**9
CONFIG = {
    **{"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28_672, "num_hidden_layers": 20},
    **{"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32_768},
    **{"rms_norm_eps": 1e-5, "max_position_embeddings": 65_536, "tie_word_embeddings": False},
}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 35 GB in bfloat16, which take no room on the disk."""
    folder = tmp_path_factory.mktemp("large")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    header, at = {}, 0
    for source in HUGGING_FACE["llama"].sources(model_from_config(folder / "config.json"), {}).values():
        for part in source.parts:
            end = at + 2 * math.prod(part.shape)
            header[part.stored] = {"dtype": "BF16", "shape": list(part.shape), "data_offsets": [at, end]}
            at = end
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    assert at > 35 * 10**9
    return folder


def limited(*arguments: object) -> tuple[int, str]:
    """The exit status and the errors of `partita` in a process that may take 2 GB."""
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_DATA, ({LIMIT}, {LIMIT}))\n"
        "import sys; from partita.cli.main import main; main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", code, *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True)
    return found.returncode, found.stderr


linux = pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA is held to on Linux alone")


@linux
@pytest.mark.parametrize(
    "asked",
    [
        ("generate", "LARGE", "--prompt-ids", "1,2", "--max-tokens", 4),
        full((("generate", "smollm2-135m", "--prompt-ids", 1, "--n", 1024, "--max-tokens", 8000),)),
        full((("generate", "smollm2-135m", "--prompt-ids", ",".join(["5"] * 8000), "--max-tokens", 8),)),
        full((("quantize", "LARGE", "OUT"),)),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_in_one_line(asked: tuple, large: Path, tmp_path: Path):
    places = {"LARGE": large, "OUT": tmp_path / "out"}
    code, said = limited(*(places.get(each, each) for each in asked))
    assert code == 2
    lines = [line for line in said.splitlines() if not line.startswith("note:")]
    assert len(lines) == 1
    assert lines[0].startswith("error: memory: ")
    assert "--force" in lines[0]


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("generate", ("--prompt-ids", 1)),
        ("quality", ("--text", "TEXT")),
        ("verify", ("--clock", "--on", "HERE")),
        ("serve", ()),
    ],
    ids=str,
)
def test_a_command_offers_its_own_options(
    command: str, more: tuple, partita: Partita, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Whatever fits: all that it could say is an option of its help."""
    places = {"TEXT": tmp_path / "text", "HERE": tmp_path / "here.toml"}
    places["TEXT"].write_text("abcd1234" * 12, encoding="utf-8")
    places["HERE"].write_text(cluster_toml(CLUSTER), encoding="utf-8")
    said: dict[str, str] = {}

    def everything(asked: object, formats: object, chunk: object, words: dict[str, str], *_: object) -> str:
        said.update(words)
        return "; ".join(words.values())

    monkeypatch.setattr(free_memory, "host_free_bytes", lambda: 1000)
    monkeypatch.setattr(memory, "smallest_change", everything)
    ran = partita(command, tiny, *(places.get(each, each) for each in more))
    assert ran.code == 2
    assert ran.err.rstrip().endswith("--force goes on all the same")
    shown = partita(command, "--help").out
    assert said
    assert [text for text in said.values() if f"{text.split()[0]} " not in shown] == []


def test_a_plan_and_a_look_at_a_model_read_no_weights(partita: Partita, large: Path):
    assert partita("plan", large, "--on", "h100:1x8", "--prompt", 64, "--output", 4).code == 0
