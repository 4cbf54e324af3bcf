"""The oracle, live: transformers and torch run again must give what the fixture holds."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from partita.checkpoints.open import packaged_gguf

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_oracle_fixture.py"


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")  # those of torch and transformers are not ours to mend
def test_transformers_gives_the_fixture(oracle: dict[str, Any]):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    spec = importlib.util.spec_from_file_location("make_oracle_fixture", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    live = script.make(packaged_gguf("smollm2-135m"))
    assert live["gguf"] == oracle["gguf"]
    assert len(live["prompts"]) == len(oracle["prompts"])
    for now, then in zip(live["prompts"], oracle["prompts"], strict=True):
        assert now | {"top_logits": None} == then | {"top_logits": None}
        assert now["top_logits"] == pytest.approx(then["top_logits"], abs=1e-3)


def test_the_fixture_begins_as_the_model_is_known_to(oracle: dict[str, Any]):
    first = oracle["prompts"][0]
    assert len(first["generated_ids"]) == 64
    text = first["prompt"] + first["text"]
    assert text.startswith("Once upon a time, the city of Nova Haven was a thriving metropolis")
