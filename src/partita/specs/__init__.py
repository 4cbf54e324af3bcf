"""What a user describes: model, chip, cluster, workload."""

from partita.specs.catalogue import (
    catalogue_model,
    chip_names,
    cluster_families,
    model_aliases,
    model_names,
    sources,
)
from partita.specs.catalogue import chip as catalogue_chip
from partita.specs.cluster import Cluster, parse_cluster
from partita.specs.formats import BYTES, Float, Format, Formats
from partita.specs.hardware import Chip, ClusterFamily, FamilyAxis, PhysicalAxis
from partita.specs.hugging_face import model_from_config
from partita.specs.model import Latent, Model
from partita.specs.profile import Constant, Profile, Region
from partita.specs.resolve import resolve_model
from partita.specs.trace import read_trace
from partita.specs.traffic import Lengths, Traffic, parse_lengths
from partita.specs.units import (
    format_bytes,
    format_count,
    format_range,
    format_seconds,
    parse_bytes,
    parse_duration,
    parse_price,
    parse_rate,
)
from partita.specs.workload import Workload

__all__ = [
    "BYTES",
    "Chip",
    "Cluster",
    "ClusterFamily",
    "Constant",
    "FamilyAxis",
    "Float",
    "Format",
    "Formats",
    "Latent",
    "Lengths",
    "Model",
    "PhysicalAxis",
    "Profile",
    "Region",
    "Traffic",
    "Workload",
    "catalogue_chip",
    "catalogue_model",
    "chip_names",
    "cluster_families",
    "format_bytes",
    "format_count",
    "format_range",
    "format_seconds",
    "model_aliases",
    "model_from_config",
    "model_names",
    "parse_bytes",
    "parse_cluster",
    "parse_duration",
    "parse_lengths",
    "parse_price",
    "parse_rate",
    "read_trace",
    "resolve_model",
    "sources",
]
