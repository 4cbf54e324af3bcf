"""Latent attention computes what its paper says, in both its forms, however the layout splits it."""

from collections.abc import Mapping

import numpy as np
import pytest
from tests.program.simulated_ops import SimulatedLatentOps, SimulatedOps
from tests.reference import feed_forward, normalise, rotate
from tests.sharding.simulated_mesh import SimulatedMesh

from partita.program import transformer
from partita.program.ops import Pass
from partita.sharding import Mesh, parse_layout, plan_storage, resolve
from partita.specs import Latent, Model
from partita.specs.parameters import parameter_table

BATCH, TOKENS = 8, 8
MESH = Mesh("xyz", (2, 2, 2))
LAYOUTS = (
    "ws1d/heads",
    "ws2d/heads",
    "ws2d/batch",
    "ws2d/context",
    "wg-x/heads",
    "wg-xy/batch",
    "wg-xyz/batch",
    "x=e,y=e,z=f/x=batch,y=heads,z=context",
    "x=replica,y=e-gathered,z=f/x=batch,y=heads,z=none",
)


def latent_model(query_rank: int | None, block: str = "serial", post_norms: bool = False) -> Model:
    return Model.model_validate(
        {
            "name": "latent",
            "layers": 1,
            "d_model": 16,
            "d_ff": 24,
            "heads": 8,
            "kv_heads": 8,
            "head_dim": 10,
            "vocabulary": 8,
            "block": block,
            "post_norms": post_norms,
            "latent": Latent(kv_rank=12, query_rank=query_rank, nope_dim=8, rope_dim=2, value_dim=3),
        }
    )


MODELS = (
    latent_model(query_rank=8),
    latent_model(query_rank=None),
    latent_model(query_rank=8, block="parallel"),
    latent_model(query_rank=8, post_norms=True),
)


def reference(model: Model, w: Mapping[str, np.ndarray], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One block on one sequence x [T, E]: its output [T, E], and the rows [T, R] to cache.

    From the equations 37 to 47 of DeepSeek-V2 (arXiv 2405.04434, appendix C), head by head.
    """
    latent = model.latent
    assert latent is not None
    y = normalise(model, x, w["norm"])
    compressed = y
    if latent.query_rank is not None:
        compressed = normalise(model, y @ w["q_down"], w["q_down_norm"])
    down = y @ w["kv_down"]
    c = normalise(model, down[:, : latent.kv_rank], w["kv_down_norm"])
    turns = [model.rotary_base ** (-2 * i / latent.rope_dim) for i in range(latent.rope_dim // 2)]
    rope_key = rotate(down[:, latent.kv_rank :], turns)
    z = np.zeros_like(x)
    for head in range(model.heads):
        query = compressed @ w["q_up" if latent.query_rank else "q"][:, head, 0]
        rope_query = rotate(compressed @ w["q_rope"][:, head, 0], turns)
        key, value = c @ w["k_up"][head, 0].T, c @ w["v_up"][:, head, 0]
        scores = (query @ key.T + rope_query @ rope_key.T) / np.sqrt(model.head_dim)
        weights = np.tril(np.exp(scores))
        z = z + weights / weights.sum(axis=-1, keepdims=True) @ value @ w["o"][head, 0]
    rows = np.concatenate([c, rope_key], axis=-1)
    if model.block == "parallel":
        return x + z + feed_forward(model, y, w), rows
    x = x + (normalise(model, z, w["post_norm"]) if model.post_norms else z)
    z = feed_forward(model, normalise(model, x, w["ffn_norm"]), w)
    return x + (normalise(model, z, w["ffn_post_norm"]) if model.post_norms else z), rows


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("text", LAYOUTS)
@pytest.mark.parametrize("model", MODELS, ids=["compressed", "direct", "parallel", "post-norms"])
def test_every_layout_computes_the_equations(model: Model, text: str, phase: str):
    """A prefill expands the rows to keys and values of every head; a decode step absorbs its query."""
    draw = np.random.default_rng(7)
    shapes = {name: row.shape for name, row in parameter_table(model).items() if row.in_block}
    w = {name: draw.standard_normal(shape) / 2 for name, shape in shapes.items()}
    x = draw.standard_normal((BATCH, TOKENS, model.d_model))
    expected, rows = map(np.stack, zip(*(reference(model, w, sequence) for sequence in x), strict=True))
    positions = np.tile(np.arange(TOKENS), (BATCH, 1))

    roles = parse_layout(text, MESH.axes)
    storage = plan_storage(model, MESH, roles, roles)
    layout = resolve(roles, storage, MESH, BATCH, TOKENS if phase == "prefill" else 1)
    ops = SimulatedLatentOps(SimulatedMesh(MESH.size), model.d_model)
    weights = {
        name: ops.place(w[name], sharding)
        for name, sharding in storage.weights(model).items()
        if name in shapes
    }
    cache = lengths = None
    if phase == "decode":
        x, expected, positions = x[:, -1:], expected[:, -1:], positions[:, -1:]
        cache, lengths = ops.place(rows, layout.latent_cache), ops.place(np.full(BATCH, TOKENS), "B")
    run = Pass(ops, model, layout, ops.place(positions, "B L"), lengths)
    got, kept = transformer.block(run, weights, ops.place(x, layout.residual), cache, local=False)
    for device, value in ops.place(expected, layout.residual).held.items():
        np.testing.assert_allclose(got.held[device], value, atol=1e-9)
    if not layout.attn_s:
        for device, value in ops.place(rows, layout.latent_cache).held.items():
            np.testing.assert_allclose(kept.held[device], value, atol=1e-9)


def test_an_interpreter_without_latent_attention_says_so():
    model, mesh = MODELS[0], Mesh("x", (1,))
    roles = parse_layout("ws1d/heads", "x")
    layout = resolve(roles, plan_storage(model, mesh, roles, roles), mesh, 1, 1)
    ops = SimulatedOps(SimulatedMesh(mesh.size), model.d_model)
    x, positions = (
        ops.place(np.ones((1, 1, model.d_model)), layout.residual),
        ops.place(np.zeros((1, 1)), "B L"),
    )
    with pytest.raises(ValueError, match="SimulatedOps does not run latent attention"):
        transformer.block(Pass(ops, model, layout, positions), {}, x, None, local=False)
