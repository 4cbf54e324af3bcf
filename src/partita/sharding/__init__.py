"""Dims, axes and partial sums; which collectives lead from one sharding to another; layouts."""

from partita.sharding.layout import Layout, Storage, plan_storage, resolve
from partita.sharding.mesh import Mesh, parse_mesh
from partita.sharding.reshard import ReshardStep, reshard
from partita.sharding.roles import ATTENTION_NAMES, FFN_NAMES, Roles, parse_layout, parse_roles
from partita.sharding.spec import Sharding, contract, parse

__all__ = [
    "ATTENTION_NAMES",
    "FFN_NAMES",
    "Layout",
    "Mesh",
    "ReshardStep",
    "Roles",
    "Sharding",
    "Storage",
    "contract",
    "parse",
    "parse_layout",
    "parse_mesh",
    "parse_roles",
    "plan_storage",
    "reshard",
    "resolve",
]
