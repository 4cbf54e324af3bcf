"""The engine against transformers: a tiny model of each family, read from its folder, on 8 devices."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.engine.bench import OWN_SHAPES
from tests.families import FAMILIES, VOCABULARY, attention_of

from partita.checkpoints.folder import open_folder
from partita.engine.engine import Engine
from partita.sharding import Mesh, parse_layout

LENGTHS = (3, 40, 17)  # tokens of the prompts; the second is longer than any window
STEPS = 32
PAIRS = [  # prefill, decode, tokens of a prompt read at once
    ("ws1d/heads", "ws1d/heads", None),
    ("ws2d/heads", "ws2d/batch", None),
    ("wg-xyz/batch", "ws2d/batch", None),
    ("ws2d/batch", "wg-xyz/batch", 16),
]


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")  # those of torch and transformers are not ours to mend
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_tokens_are_those_of_transformers(family: str, tmp_path: Path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = FAMILIES[family](tmp_path / family)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention_of(family)
    )
    random = np.random.default_rng(7)
    prompts = [random.integers(0, VOCABULARY, length).tolist() for length in LENGTHS]
    continued, expected = [], []
    for prompt in prompts:
        with torch.no_grad():
            ids = theirs.generate(torch.tensor([prompt]), max_new_tokens=STEPS, do_sample=False)[0].tolist()
            expected.append(theirs(torch.tensor([ids])).logits[0].numpy())
        continued.append(ids)
    for prefill, decode, chunk in PAIRS:
        roles = parse_layout(prefill, "xyz"), parse_layout(decode, "xyz")
        options = replace(OWN_SHAPES, chunk=chunk)
        engine = Engine(open_folder(folder), Mesh("xyz", (2, 2, 2)), *roles, options=options)
        for found, wanted in zip(engine.logits(continued), expected, strict=True):
            np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=0)
        tokens = engine.generate(prompts, STEPS)
        assert [p + t for p, t in zip(prompts, tokens, strict=True)] == continued, (prefill, decode)
