"""Plans as files: what `plan --save` wrote is read back and priced anew.

The file holds the whole setting, model and cluster included, so that it means the same wherever it is read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from partita.cost.prediction import Prediction, Setting, predict
from partita.errors import InputError
from partita.sharding.layout import plan_storage
from partita.sharding.mesh import parse_mesh
from partita.sharding.roles import Roles, parse_roles
from partita.specs.cluster import Cluster
from partita.specs.formats import Formats
from partita.specs.hardware import read_utilization
from partita.specs.model import Model
from partita.specs.wording import describe
from partita.specs.workload import Workload

SCHEMA = "partita.plan/1"


@dataclass(frozen=True)
class SavedPlan:
    """A plan as it was chosen: the setting and the roles of both phases."""

    setting: Setting
    prefill: Roles
    decode: Roles

    def predictions(self) -> tuple[Prediction, Prediction]:
        """Both phases, priced on the storage they share."""
        storage = plan_storage(self.setting.model, self.setting.mesh, self.decode, self.prefill)
        return (
            predict(self.setting, "prefill", self.prefill, storage),
            predict(self.setting, "decode", self.decode, storage),
        )


def setting_as_json(setting: Setting) -> dict[str, Any]:
    """Everything a plan was made for, as `load_plan` reads it."""
    return {
        "model": setting.model.model_dump(),
        "cluster": setting.cluster.model_dump(mode="json"),
        "mesh": str(setting.mesh),
        "formats": setting.formats.model_dump(),
        "workload": setting.workload.model_dump(),
        "stages": setting.stages,
        "memory_utilization": setting.memory_utilization,
    }


def load_plan(path: str | Path) -> SavedPlan:
    """Reads a plan file. Raises InputError (field "plan") naming what is missing or wrong."""
    try:
        data = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise InputError("plan", path, f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise InputError("plan", path, "is not JSON; give a file that `partita plan --save` wrote") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise InputError("plan", path, f"is not a plan; its schema must be {SCHEMA}")
    try:
        written = data["setting"]
        setting = Setting(
            Model.model_validate(written["model"]),
            Cluster.model_validate(written["cluster"]),
            parse_mesh(written["mesh"]),
            Formats.model_validate(written["formats"]),
            _workload(written["workload"]),
            written.get("stages", 1),
            read_utilization(written.get("memory_utilization", 1.0), "memory_utilization"),
        )
        _ = setting.peaks, setting.parts
        axes = setting.mesh.axes
        layouts = {phase: data[phase]["layout"] for phase in ("prefill", "decode")}
        roles = {p: parse_roles(layout["ffn"], layout["attention"], axes) for p, layout in layouts.items()}
    except ValidationError as error:
        raise InputError("plan", path, describe(error)) from None
    except InputError as error:
        raise InputError("plan", path, str(error)) from None
    except KeyError as error:
        raise InputError("plan", path, f"is not a whole plan: {error} is missing") from None
    except (TypeError, AttributeError):
        raise InputError("plan", path, "is not a whole plan: a part of it is of another kind") from None
    return SavedPlan(setting, roles["prefill"], roles["decode"])


def _workload(written: dict[str, Any]) -> Workload:
    """What older files do not have keeps its default."""
    fields = set(Workload.model_fields)
    needed = {name for name, field in Workload.model_fields.items() if field.is_required()}
    if wrong := sorted((needed - set(written)) | (set(written) - fields)):
        raise InputError(
            "workload", ", ".join(wrong), f"missing or unknown; its keys must be {', '.join(sorted(fields))}"
        )
    return Workload(**written)
