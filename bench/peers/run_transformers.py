"""transformers on torch, served to `bench/engine.py`: a Llama of given sizes with random weights.

The model is called directly, without the loop of `generate`, and its greedy token fetched: the least that a
user pays. Decode goes on from a cache that means nothing, which is cut back before it grows long.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import argparse
import json

import torch
import transformers
from serve import Case, Step, serve

GROWTH = 32
"""Tokens that a decode's cache grows by before it is cut back."""


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--sizes", required=True, help="of a LlamaConfig, as JSON")
    options.add_argument("--dtype", choices=("float32", "bfloat16"), required=True)
    asked = options.parse_args()
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    config = transformers.LlamaConfig(**json.loads(asked.sizes))
    model = transformers.LlamaForCausalLM(config).to(getattr(torch, asked.dtype)).eval()

    def cached(case: Case) -> transformers.DynamicCache:
        cache = transformers.DynamicCache(config=config)
        shape = (case.batch, config.num_key_value_heads, case.tokens, config.head_dim)
        for layer in range(config.num_hidden_layers):
            cache.update(*torch.randn(2, *shape, dtype=model.dtype), layer)
        return cache

    def ready(case: Case) -> Step:
        if case.phase == "prefill":
            tokens = torch.randint(config.vocab_size, (case.batch, case.tokens))
            return lambda: token_of(model(input_ids=tokens, use_cache=True, logits_to_keep=1))
        cache = cached(case)
        kept = [torch.zeros(case.batch, 1, dtype=torch.long)]

        def step() -> None:
            if cache.get_seq_length() >= case.tokens + GROWTH:
                cache.crop(case.tokens)
            found = model(input_ids=kept[0], past_key_values=cache, use_cache=True, logits_to_keep=1)
            kept[0] = token_of(found)

        return step

    about = {
        "version": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "weight_bytes": sum(p.numel() * p.element_size() for p in model.parameters()),
        "cache_bytes": model.dtype.itemsize,
    }
    serve(ready, about)


def token_of(found) -> torch.Tensor:
    """The greedy tokens [batch, 1], fetched."""
    tokens = found.logits[:, -1].argmax(-1, keepdim=True)
    tokens.tolist()
    return tokens


if __name__ == "__main__":
    main()
