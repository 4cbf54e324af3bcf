"""Run one checkpoint in two layouts and see that the tokens are the same.

The mesh is four CPU devices unless JAX finds an accelerator. Weight-stationary keeps the weights where they
are in both phases; the second engine gathers them in prefill and splits attention over heads in decode.

    python examples/two_layouts.py [MODEL]      # smollm2-135m, or a folder, a .gguf file, a repo id
"""

import sys

import partita

LAYOUTS = (("ws2d/batch", "ws2d/batch"), ("wg-xy/batch", "ws1d/heads"))
PROMPTS = [[1, 2, 3, 4, 5], [6, 7, 8]]


def main(model: str = "smollm2-135m") -> None:
    written = []
    for prefill, decode in LAYOUTS:
        engine = partita.Engine.load(model, mesh="x=2,y=2", prefill=prefill, decode=decode, dtype="f32")
        written.append(engine.generate(PROMPTS, max_tokens=8))
        print(f"prefill {prefill}, decode {decode}: {written[-1]}")
    print("same tokens" if written[0] == written[1] else "DIFFERENT tokens")


if __name__ == "__main__":
    main(*sys.argv[1:])
