"""The NumPy reference against transformers, for a tiny model of each family read from its folder."""

from pathlib import Path

import numpy as np
import pytest
from tests import reference
from tests.families import FAMILIES, VOCABULARY, attention_of

from partita.checkpoints.folder import open_folder
from partita.specs.parameters import all_parameters

PROMPTS = (3, 40)  # tokens; the second is longer than any window
STEPS = 32


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")  # those of torch and transformers are not ours to mend
@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_gives_the_logits_and_tokens_of_transformers(family: str, tmp_path: Path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = FAMILIES[family](tmp_path / family)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention_of(family)
    )
    checkpoint = open_folder(folder)
    model = checkpoint.model
    parameters = {name: checkpoint.read(name) for name in all_parameters(model)}
    for length in PROMPTS:
        prompt = np.random.default_rng(length).integers(0, VOCABULARY, length).tolist()
        with torch.no_grad():
            generated = theirs.generate(
                torch.tensor([prompt]), max_new_tokens=STEPS, do_sample=False, use_cache=True
            )[0].tolist()
            expected = theirs(torch.tensor([generated[:-1]])).logits[0].numpy()
        logits = reference.logits(model, parameters, generated[:-1])
        np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=0)
        chosen_by = reference.logits(model, parameters, generated[:-1], prompt=length)[length - 1 :]
        assert chosen_by.argmax(axis=-1).tolist() == generated[length:]
