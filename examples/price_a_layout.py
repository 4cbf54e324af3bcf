"""Price one layout by hand with the cost model: no search, no JAX.

PaLM 540B on 64 TPU v4 chips, decode at batch 64 with 2048 tokens in the cache, int8 weights: the paper's
2D weight-stationary layout with attention over the batch, beside a layout the paper does not name.
"""

from partita.cost.prediction import predict
from partita.cost.setting import Setting
from partita.sharding import parse_layout, parse_mesh
from partita.specs import Formats, Workload, catalogue_model, format_seconds, parse_cluster

LAYOUTS = ("ws2d/batch", "x=f,y=f,z=e/x=batch,y=batch,z=context")


def main() -> None:
    mesh = parse_mesh("x=4,y=4,z=4")
    workload = Workload(prompt=2048, output=64, batch=64, context=2048)
    setting = Setting(
        catalogue_model("palm-540b"), parse_cluster("tpu-v4:4x4x4"), mesh, Formats(weights="int8"), workload
    )
    for layout in LAYOUTS:
        found = predict(setting, "decode", parse_layout(layout, mesh.axes))
        print(
            f"{layout}: bound {format_seconds(found.step_seconds)} a step, largest part {found.bound.binds}"
        )
        if found.estimate is not None:
            print(f"  estimate {format_seconds(found.estimate.step_seconds)}")
        for (kind, axes), (sent, messages) in found.step.ledger.collectives().items():
            print(f"  {kind} over {axes}: {sent:,.0f} bytes in {messages:,.0f} messages per chip")


if __name__ == "__main__":
    main()
