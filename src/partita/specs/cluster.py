"""A cluster: chips of one kind joined by a fabric; and reading one from its name or a TOML file.

A cluster of the catalogue is named with its shape, `tpu-v4:4x4x4`. Any other is a TOML file, of which this
is a complete example (two nodes of eight GPUs; figures are in FLOP/s, bytes, bytes per second and seconds):

    name = "two-nodes"                  # optional: the file's name without .toml

    [chip]                              # or: chip = "tpu-v4", the name of a chip in the catalogue
    name = "a100-80gb"
    peak_flops = { f32 = 19.5e12, bf16 = 312e12, int8 = 624e12 }    # dense; one of them is enough
    hbm_bytes = 80_000_000_000
    hbm_bandwidth = 2.039e12
    runtime_bytes = 1_800_000_000       # optional: what driver and runtime keep of the memory
    price_per_hour = 2.5                # optional: of one chip, in any currency

    [[fabric]]                          # slowest axis first: here the network between nodes
    kind = "network"                    # torus, switch or network
    size = 2
    link_bandwidth = 25e9               # of one link, in one direction, as one chip sees it
    links = 1                           # optional: links of one chip on this axis
    latency = 5e-6                      # optional: per message

    [[fabric]]                          # then the switch inside a node
    kind = "switch"
    size = 8
    link_bandwidth = 25e9
    links = 12
    in_network_reduction = false        # optional: whether the switch sums (NVLink SHARP)

Where chips share a link, such as two GPUs one network card, give each its part of the bandwidth. An axis
with `kind = "torus"` has `links = 2` and may say `wraparound = true`. The efficiencies of chips and software
may be said with `profile = "a100"`, one of the catalogue, above the tables, or in a table `[profile]` with
the fields of `Profile`; a cluster without them has bounds and no estimates.
"""

from __future__ import annotations

import os
import re
import tomllib
from math import prod
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from partita.errors import InputError
from partita.specs import catalogue
from partita.specs.hardware import Chip, PhysicalAxis
from partita.specs.profile import Profile
from partita.specs.wording import describe, did_you_mean

_SHAPE = re.compile(r"[0-9]{1,9}(x[0-9]{1,9})*")


class Cluster(BaseModel):
    """Chips of one kind and the fabric that joins them, slowest axis first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    chip: Chip
    fabric: Annotated[tuple[PhysicalAxis, ...], Field(min_length=1)]
    profile: Profile | None = None
    """What its chips and their software reach; None where nobody measured it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each physical axis, slowest first; axes of size 1 are kept."""
        return tuple(axis.size for axis in self.fabric)

    @property
    def chips(self) -> int:
        return prod(self.shape)

    def bandwidth_bytes_per_second(self, axis_index: int) -> float:
        """Bytes per second one chip can send in a collective over a physical axis, as the bound counts them.

        A collective over any axis of a torus can be spread over all of its links, so a torus axis counts
        every torus link of the chip, those of size-1 axes too: on TPU v4 6 x 45 GB/s = 270 GB/s (Pope et
        al. 2022, arXiv 2211.05102). A switch or network axis counts its own links.
        """
        axis = self.fabric[axis_index]
        if axis.kind != "torus":
            return axis.bandwidth
        return sum(other.bandwidth for other in self.fabric if other.kind == "torus")


def parse_cluster(text: str) -> Cluster:
    """The cluster of a name with a shape (`tpu-v4:4x4x4`) or of a path that ends in `.toml`.

    Raises InputError on `cluster`; its message names what would be accepted.
    """
    if text.lower().endswith(".toml"):
        return _read(text)
    name, _, shape = text.strip().lower().partition(":")
    families = catalogue.cluster_families_by_name()
    family = families.get(name)
    if family is None:
        patterns = ", ".join(family.pattern for family in catalogue.cluster_families())
        hint = did_you_mean(name, families)
        raise InputError("cluster", text, f"unknown; {hint}accepted: {patterns}, or a path to a .toml file")
    accepted = f"accepted: {family.pattern}, such as {family.example_name}"
    if not shape:
        raise InputError("cluster", text, f"has no shape; {accepted}")
    if not _SHAPE.fullmatch(shape):
        raise InputError("cluster", text, f"the shape must be whole numbers joined by x; {accepted}")
    sizes = [int(size) for size in shape.split("x")]
    try:
        fabric = family.shaped(sizes)
    except ValueError as error:
        raise InputError("cluster", text, f"{error}; {accepted}") from None
    return Cluster(
        name=f"{family.name}:{'x'.join(map(str, sizes))}",
        chip=catalogue.chip(family.chip),
        fabric=fabric,
        profile=catalogue.family_profile(family.name),
    )


def _read(path: str) -> Cluster:
    try:
        data = tomllib.loads(Path(os.path.expanduser(path)).read_bytes().decode())
    except OSError as error:
        raise InputError("cluster", path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError("cluster", path, "is not a text file in UTF-8") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError says the line and column
        raise InputError("cluster", path, f"is not valid TOML: {error}") from None
    data.setdefault("name", Path(path).stem)
    for field, known in (("chip", catalogue.chip), ("profile", catalogue.profile)):
        if isinstance(data.get(field), str):
            try:
                data[field] = known(data[field])
            except InputError as error:
                raise InputError("cluster", path, str(error)) from None
    try:
        return Cluster.model_validate(data)
    except ValidationError as error:
        raise InputError("cluster", path, describe(error)) from None
