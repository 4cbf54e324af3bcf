"""What a layout is before sizes are known: for one phase, the role each mesh axis plays.

The named layouts are those of Pope et al. 2022, sections 3.2 and 3.3; any other combination is written as
roles, `x=e,y=f,z=f-gathered`. `layout.py` resolves roles for a model and a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from partita.errors import InputError

WeightRole = Literal["e", "f", "e-gathered", "f-gathered", "replica"]
"""Over this axis the weights are: kept split on E, kept split on F and heads, stored split on E (or F) and
gathered before use with tokens split instead, or replicated with tokens split."""

AttentionRole = Literal["heads", "batch", "context", "none"]
"""Over this axis attention splits its heads, its sequences, its context, or nothing.

Context: in decode the cached positions; in prefill the query tokens, and the cache it leaves over positions.
"""

FFN_NAMES = ("ws1d", "ws2d", "wg-x", "wg-xy", "wg-xyz")
ATTENTION_NAMES = ("heads", "batch", "context")


class AxisRoles(NamedTuple):
    """The roles that a mesh axis plays in one phase."""

    weights: WeightRole
    attention: AttentionRole

    @property
    def stored(self) -> str:
        """What this axis splits the stored weights on: "e", "f" or, for replicas, nothing."""
        return "" if self.weights == "replica" else self.weights[0]

    @property
    def splits_tokens(self) -> bool:
        """Whether tokens are split over it, its weights gathered before use or replicas."""
        return self.weights not in ("e", "f")

    @property
    def trades(self) -> bool:
        """Whether attention wants its sequences or positions split over it."""
        return self.attention in ("batch", "context")


def splits_heads(*phases: AxisRoles) -> bool:
    """Whether some weight or attention splits heads over an axis with these roles, first those of decode."""
    return phases[0].stored == "f" or any(r.weights == "f" or r.attention == "heads" for r in phases)


def prefers_k(*phases: AxisRoles) -> tuple[bool, ...]:
    """Sorts axes with these roles, first those of decode, by which of them split the key/value heads first.

    Among assignments that are equally good, K goes where attention splits heads, so that the cache is split,
    and last where it splits sequences, which G can be summed into.
    """
    return (
        *(phase.attention != "heads" for phase in phases),
        *(phase.attention == "batch" for phase in phases),
        phases[0].weights != "f",
        phases[0].splits_tokens,
    )


@dataclass(frozen=True)
class Roles:
    """Roles of every mesh axis in one phase, in the mesh's order, and the names they were given by."""

    ffn: str
    attention: str
    weights: tuple[tuple[str, WeightRole], ...]
    attends: tuple[tuple[str, AttentionRole], ...]

    @property
    def by_axis(self) -> dict[str, AxisRoles]:
        """Both roles of every axis."""
        attends = dict(self.attends)
        return {axis: AxisRoles(role, attends[axis]) for axis, role in self.weights}

    def __str__(self) -> str:
        return f"{self.ffn}/{self.attention}"


def parse_roles(ffn: str, attention: str, axes: str) -> Roles:
    """Reads `--ffn` and `--attention` for a mesh with these axes. Raises InputError naming the flag."""
    weights = dict(zip(axes, _named_ffn(ffn, axes), strict=True)) if ffn in FFN_NAMES else None
    if weights is None:
        weights = _written("ffn", ffn, axes, get_args(WeightRole), FFN_NAMES)
    if attention in ATTENTION_NAMES:
        attends = dict.fromkeys(axes, attention)
    else:
        attends = _written("attention", attention, axes, get_args(AttentionRole), ATTENTION_NAMES)
    return Roles(ffn, attention, tuple(weights.items()), tuple(attends.items()))  # type: ignore[arg-type]


def parse_layout(text: str, axes: str) -> Roles:
    """Reads `ws2d/batch`: the feed-forward part, a slash, the attention part."""
    ffn, slash, attention = text.partition("/")
    if not slash:
        raise InputError("layout", text, "write FFN/ATTENTION, e.g. ws2d/batch or wg-xyz/heads")
    return parse_roles(ffn, attention, axes)


def name_roles(
    weights: tuple[tuple[str, WeightRole], ...], attends: tuple[tuple[str, AttentionRole], ...]
) -> Roles:
    """Roles under the names the paper has for them, else written axis by axis; axes in the mesh's order."""
    axes = "".join(axis for axis, _ in weights)
    roles = [role for _, role in weights]
    ffn = next((name for name in FFN_NAMES if _named_ffn(name, axes) == roles), None)
    split = {role for _, role in attends}
    attention = next((name for name in ATTENTION_NAMES if split == {name}), None)
    return Roles(
        ffn or ",".join(f"{axis}={role}" for axis, role in weights),
        attention or ",".join(f"{axis}={role}" for axis, role in attends),
        weights,
        attends,
    )


def _named_ffn(name: str, axes: str) -> list[str]:
    """Weights stored `E_x F_yz...` and gathered over none or the first 1, 2 or all axes; ws1d: `E F_xyz`."""
    if name == "ws1d":
        return ["f"] * len(axes)
    gathered = {"ws2d": 0, "wg-x": 1, "wg-xy": 2, "wg-xyz": len(axes)}[name]
    stored = ["e", *["f"] * (len(axes) - 1)]
    return [role + ("-gathered" if i < gathered else "") for i, role in enumerate(stored)]


def _written(field: str, text: str, axes: str, roles: tuple[str, ...], names: tuple[str, ...]) -> dict:
    accepted = (
        f"accepted are {', '.join(names)}, or a role for every axis of the mesh such as "
        f"{','.join(f'{axis}={roles[0]}' for axis in axes)} with roles {', '.join(roles)}"
    )
    found: dict[str, str] = {}
    for part in text.split(","):
        axis, equals, role = part.strip().partition("=")
        if not equals or role not in roles:
            raise InputError(
                field,
                text,
                f"unknown layout; {accepted}" if not equals else f"unknown role {role!r}; {accepted}",
            )
        if axis not in axes or len(axis) != 1:
            raise InputError(
                field, text, f"axis {axis!r} is not one of the mesh's ({', '.join(axes)}); {accepted}"
            )
        if axis in found:
            raise InputError(field, text, f"axis {axis} is named twice; {accepted}")
        found[axis] = role
    if missing := [axis for axis in axes if axis not in found]:
        raise InputError(field, text, f"no role for axis {', '.join(missing)}; {accepted}")
    return {axis: found[axis] for axis in axes}
