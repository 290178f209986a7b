"""Where the numbers of `evaluate` and `probe` come from.

In: a model and what was measured. Out: a `Provenance`. Never: a number.
"""

from typing import Any

from vlmtune.model.model import Model
from vlmtune.report.environment import code_commit, library_versions, now, session
from vlmtune.report.run_report import Provenance


def provenance_of(
    model: Model, given: str, pretrained: str | None, measured: dict[str, Any]
) -> Provenance:
    """Returns the provenance of numbers of a model.

    Data, seed and time are those of its training; versions, commit and date those of now, beside
    those of the training. `given` is the model as it was typed, `pretrained` its tag of weights,
    and `measured` says in `config` what was measured and how.
    """
    trained = model.provenance
    # Beside the versions and the commit of this measurement.
    facts = ("config", "versions", "commit", "date")
    training = {key: trained[key] for key in facts if key in trained}
    adapter = "zero-shot"
    digest = ""
    if not model.untrained:
        adapter = type(model.adapter).__name__
        digest = model.digest()
    # Nothing checked these values when the checkpoint was read: they may be of any type.
    data = _of_type(trained.get("data"), str, "")
    seed = _of_type(trained.get("seed"), int, None)
    seconds = _of_type(trained.get("seconds"), int | float, 0.0)
    return Provenance(
        backbone=model.backbone.title,
        adapter=adapter,
        model={"backbone": model.backbone.spec(), "adapter": model.adapter.spec()},
        fingerprint=model.backbone.fingerprint,
        data=data,
        config={
            "evaluated": given,
            "pretrained": pretrained,
            "weights": model.backbone.weights_file,
            "digest": digest,
            **session(),
            **measured,
            "training": training,
        },
        versions=library_versions(),
        commit=code_commit(),
        date=now(),
        seed=seed,
        trainable_parameters=model.trained_parameters,
        seconds=float(seconds),
    )


def _of_type(value: Any, kind: Any, otherwise: Any) -> Any:
    return value if isinstance(value, kind) else otherwise
