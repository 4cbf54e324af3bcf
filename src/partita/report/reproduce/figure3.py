"""Figure 3: what a feed-forward layer's chips send, by tokens in the batch, in each layout."""

from __future__ import annotations

import numpy as np

from partita.cost.ops import CostOps, Sized
from partita.cost.step import sized_weights
from partita.program import transformer
from partita.report.plots import Panel, Rule, Series
from partita.report.reproduce.exhibit import Column, Exhibit, Rows, ratio
from partita.report.reproduce.published import published
from partita.sharding import Mesh, parse, parse_roles, plan_storage, resolve
from partita.specs import Formats, Model

TITLE = "Communication volume of a feed-forward layer vs. batch size in tokens"
LAYOUTS = {
    "ws1d": "1D weight-stationary",
    "ws2d": "2D weight-stationary",
    "wg-x": "X weight-gathered",
    "wg-xy": "XY weight-gathered",
    "wg-xyz": "XYZ weight-gathered",
}
MESH = Mesh.of((4, 4, 4))
FORMATS = Formats(weights="bf16", activations="bf16", reduce="bf16")
TOKENS = tuple(2**i for i in range(11, 23))
_BYTES = 2  # of an element


def model() -> Model:
    """The figure's layer: two matrices of d_model 16384 and d_ff 65536. Its attention is not priced."""
    return Model(
        name="figure-3",
        layers=1,
        d_model=16384,
        d_ff=65536,
        heads=64,
        kv_heads=1,
        head_dim=256,
        vocabulary=1,
        feed_forward="gelu",
    )


def volumes(layout: str, tokens: np.ndarray) -> np.ndarray:
    """Elements one chip sends in the layer [tokens], from residual to residual: the program, priced."""
    layer, axes = model(), MESH.axes
    roles = parse_roles(layout, "heads", axes)
    decode = roles if layout == "ws1d" else parse_roles("ws2d", "heads", axes)
    found = resolve(roles, plan_storage(layer, MESH, decode, roles), MESH, int(tokens.max()), 1)
    ops = CostOps(MESH.size, FORMATS, layers=1)
    weights = sized_weights(ops, layer, found, found.storage.padded(layer, MESH.size))
    sizes = {"B": tokens.astype(float), "L": 1, "E": layer.d_model}
    x = Sized(parse(found.residual), sizes, FORMATS.activations, FORMATS.activations)
    h = transformer.gathered_product(ops, found, x, transformer.ffn_inputs(ops, found, weights))
    transformer.ffn_output(ops, layer, found, weights, h, found.residual)
    return ops.ledger.total("sent_bytes") / _BYTES + 0 * tokens


def crossover(first: str, second: str) -> float:
    """Tokens at which two layouts send the same: volumes are straight lines over the tokens."""
    at = np.array([2.0**16, 2.0**20])
    difference = volumes(first, at) - volumes(second, at)
    return float(at[0] - difference[0] * (at[1] - at[0]) / (difference[1] - difference[0]))


def build() -> Exhibit:
    tokens = np.array(TOKENS)
    swept = {name: volumes(name, tokens) for name in LAYOUTS}
    switches, derived = published("figure3"), published("figure3-volumes")
    crossings = [
        {
            "from": row["from"],
            "to": row["to"],
            "counted_tokens": crossover(row["from"], row["to"]),
            "derived_tokens": row["tokens"],
        }
        for row in switches.rows
    ]
    return Exhibit(
        name="figure3",
        title=f"Figure 3. {TITLE}",
        caption=(
            "X = Y = Z = 4, d_model 16384, d_ff 65536, two matrices, bf16. Counted in the program, with "
            "the exact factor (K-1)/K of a collective over K chips: what the layouts send, not a time. "
            "Dotted: where the next layout sends less.",
            f"No digits of the original are at hand. The values set beside are {derived.provenance}, with "
            "(K-1)/K taken as 1: so they lie above the exact ones, by up to 4/3 where collectives run over "
            "one axis of 4, and cross at the same tokens.",
        ),
        panels=(
            Panel(
                title="64 chips, X = Y = Z = 4, d_model 16384, d_ff 65536",
                x_label="Batch size (tokens)",
                y_label="Communication volume (GB sent per chip and layer)",
                series=tuple(
                    Series(
                        label, TOKENS, tuple(float(v) * _BYTES / 1e9 for v in swept[name]), "count", colour=i
                    )
                    for i, (name, label) in enumerate(LAYOUTS.items())
                ),
                rules=tuple(
                    Rule("x", row["counted_tokens"], f"{row['counted_tokens']:,.0f} tokens")
                    for row in crossings
                ),
                x_scale="log2",
                y_scale="log",
                x_ticks=TOKENS[1::2],
            ),
        ),
        tables=(
            Rows(
                "Where the next layout sends less",
                (
                    Column("from", "from"),
                    Column("to", "to"),
                    Column("counted_tokens", "tokens, exact form", "count"),
                    Column("derived_tokens", "tokens, derived", "count"),
                ),
                tuple(crossings),
            ),
            _against_formulas(),
        ),
    )


def _against_formulas() -> Rows:
    derived = published("figure3-volumes").rows
    at = np.array([row["tokens"] for row in derived])
    found = []
    for name in LAYOUTS:
        for row, exact in zip(derived, volumes(name, at), strict=True):
            found.append(
                {
                    "layout": name,
                    "tokens": row["tokens"],
                    "counted_elements": float(exact),
                    "derived_elements": row[name],
                    "derived_over_counted": ratio(row[name], float(exact)),
                }
            )
    return Rows(
        "Elements sent per chip and layer",
        (
            Column("layout", "layout"),
            Column("tokens", "tokens", "count"),
            Column("counted_elements", "exact form", "number"),
            Column("derived_elements", "paper's form, derived", "number"),
            Column("derived_over_counted", "paper's form / exact", "ratio"),
        ),
        tuple(found),
    )
