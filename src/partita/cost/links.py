"""Which physical links a logical mesh axis uses, and how fast they are at most."""

from __future__ import annotations

import math
from collections.abc import Mapping

from partita.errors import InputError
from partita.sharding.mesh import Mesh
from partita.specs.cluster import Cluster


def check_mesh(mesh: Mesh, cluster: Cluster) -> None:
    """Raises InputError (field "mesh") unless the mesh has as many chips as the cluster."""
    if mesh.chips != cluster.chips:
        raise InputError(
            "mesh", mesh, f"has {mesh.chips} chips; its size must be that of {cluster.name}, {cluster.chips}"
        )


def axis_bandwidths(mesh: Mesh, cluster: Cluster) -> Mapping[str, float]:
    """Peak bytes per second one chip can send in a collective over each mesh axis.

    Logical axes fill the physical ones in order, last with last (the fastest); one that spans several has
    the slowest's bandwidth, one of size 1 sends nothing and has no limit (inf). On a torus every axis counts
    the whole of the chip's links, as in the paper. Raises InputError (field "mesh") where they do not fit.
    """
    check_mesh(mesh, cluster)
    level = len(cluster.fabric) - 1
    room = cluster.fabric[level].size
    found = {}
    for axis, size in reversed(list(mesh.size.items())):
        speeds = []
        while size > 1:
            if room == 1:
                level -= 1
                room = cluster.fabric[level].size
                continue
            speeds.append(cluster.bandwidth_bytes_per_second(level))
            if size % room == 0:
                size, room = size // room, 1
            elif room % size == 0:
                size, room = 1, room // size
            else:
                raise InputError(
                    "mesh",
                    mesh,
                    f"axis {axis} does not fit {cluster.name}: give axes that divide its physical axes "
                    f"({'x'.join(map(str, cluster.shape))}) or are divided by them, fastest last",
                )
        found[axis] = min(speeds, default=math.inf)
    return found
