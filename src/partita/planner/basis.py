"""Which of its two times a plan goes by, the bound or the estimate, and a phase's seconds by either.

A plan is searched, limited and stated by one of them alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from partita.cost.phase_estimate import PhaseEstimate
from partita.cost.prediction import Prediction
from partita.errors import InputError
from partita.specs.cluster import Cluster

Basis = Literal["bound", "estimate"]
BASES: tuple[Basis, ...] = ("bound", "estimate")


def parse_basis(text: str) -> Basis:
    """Raises InputError (field "by") where it is none of `BASES`."""
    if text not in BASES:
        raise InputError("by", text, f"accepted are {', '.join(BASES)}")
    return text


def basis_of(clusters: Iterable[Cluster], asked: Basis | None = None) -> Basis:
    """The basis asked for, else the estimate where every cluster's profile compares layouts.

    Raises InputError (field "by") where an estimate is asked for and a cluster has no profile.
    """
    clusters = tuple(clusters)
    bare = next((cluster.name for cluster in clusters if cluster.profile is None), None)
    if asked == "estimate" and bare is not None:
        raise InputError("by", asked, f"{bare} has no efficiency profile to estimate by; bound is accepted")
    compared = all(cluster.profile is not None and cluster.profile.compares for cluster in clusters)
    return asked or ("estimate" if compared else "bound")


def step_seconds(prediction: Prediction, basis: Basis) -> float:
    """Seconds of the longest step; raises the errors of `expected`."""
    return prediction.step_seconds if basis == "bound" else expected(prediction).step_seconds


def total_seconds(prediction: Prediction, basis: Basis) -> float:
    """Seconds of the whole phase; raises the errors of `expected`."""
    return prediction.total_seconds if basis == "bound" else expected(prediction).total_seconds


def expected(prediction: Prediction) -> PhaseEstimate:
    """The estimate. Raises InputError (field "by") where the cluster has no profile."""
    if prediction.estimate is None:
        basis_of((prediction.setting.cluster,), "estimate")
    assert prediction.estimate is not None
    return prediction.estimate
