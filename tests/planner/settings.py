"""Settings that the planner's tests share."""

from partita.cost.prediction import Setting
from partita.sharding.mesh import Mesh
from partita.specs import Formats, Workload, catalogue_model, parse_cluster


def setting(model: str, cluster: str, formats: Formats | None = None, **workload: int) -> Setting:
    """A model of the catalogue on a cluster's own mesh; prompts of 2048 and outputs of 64 unless given."""
    on = parse_cluster(cluster)
    sizes = Workload(**({"prompt": 2048, "output": 64} | workload))
    return Setting(catalogue_model(model), on, Mesh.of(on.shape), formats or Formats(), sizes)


def palm(formats: Formats | None = None, **workload: int) -> Setting:
    """PaLM 540B on the 64 chips of the paper."""
    return setting("palm-540b", "tpu-v4:4x4x4", formats, **workload)
