"""The files of an export: writing them and reading the configuration.

In: a backbone and its trained adapter. Out: the folder. Never: another folder overwritten.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from vlmtune.adapters.base import Adapter
from vlmtune.adapters.trained_state import trained_state, trained_values
from vlmtune.backbones.base import Backbone
from vlmtune.backbones.weight_checks import check_finite
from vlmtune.errors import UserError
from vlmtune.model.layout import CARD, CONFIG, FILES, PEFT_WEIGHTS, VERSION, WEIGHTS
from vlmtune.results.result import Result
from vlmtune.storage.files import sha256_of, write_atomically
from vlmtune.storage.secrets import without_secrets

SIZES = ("embed_dim", "image_width", "text_width", "image_tokens", "logit_scale")


def save_export(
    folder: str | Path,
    backbone: Backbone,
    adapter: Adapter,
    *,
    provenance: Mapping[str, Any],
    overwrite: bool = False,
    alpha: float = 1.0,
    licence: str | None = None,
    peft: bool = False,
) -> None:
    """Writes an export atomically.

    Args:
        folder: Where to write. A folder that is not an export is never replaced.
        backbone: The backbone.
        adapter: The adapter, attached to it.
        provenance: Where the weights come from, as far as known: `config`, `data`, `seed` and
            `seconds` of the training, `versions` of libraries, `commit`, `date`, and `results`, the
            `Result`s of benchmarks for the model card.
        overwrite: Replace an existing export.
        alpha: The WiSE-FT coefficient, from 0 (pre-trained) to 1 (trained), recorded in the export.
        licence: The licence of the trained weights, as the hub names it ("apache-2.0").
        peft: Write the folder that `peft.PeftModel.from_pretrained` loads. It holds LoRA alone,
            without a learned scale of scores.

    Raises:
        UserError: `folder` holds something else, or an export and `overwrite` is False; PEFT has
            no form for the adapter.
    """
    # Loading and checking an export needs neither the library of the hub nor tables.
    from vlmtune.export.model_card import model_card

    folder = Path(folder)
    check_target(folder, overwrite)
    tensors = trained_state(backbone, adapter)
    # NaN loads without an error, and then ranks captions at random.
    check_finite(tensors, "train or export again")
    recorded = dict(provenance)
    results: Sequence[Result] = recorded.pop("results", ())
    file = WEIGHTS
    peft_config = None
    if peft:
        from vlmtune.export.to_peft import peft_files  # loads the backbones of transformers

        file = PEFT_WEIGHTS
        tensors, peft_config = peft_files(backbone, adapter)
    state = {}
    for name, value in tensors.items():
        # safetensors refuses tensors that share memory or have gaps in it.
        state[name] = value.detach().cpu().contiguous().clone()
    config = {
        "format": "vlmtune-adapter",
        "version": VERSION,
        "backbone": {
            **backbone.spec(),
            "fingerprint": backbone.fingerprint,
            "sizes": {name: getattr(backbone, name) for name in SIZES},
        },
        "adapter": adapter.spec(),
        "alpha": alpha,
        "licence": licence,
        "trained_values": trained_values(backbone, adapter),
        "provenance": without_secrets(recorded),
        "scores": [_scores(result) for result in results],
    }
    # A reader sees the old export or the whole new one.
    with write_atomically(folder) as new:
        new.mkdir()
        save_file(state, new / file, metadata={"format": "pt"})
        config["weights_sha256"] = sha256_of(new / file)
        # As JSON has it: paths become texts, tuples become lists.
        plain = json.loads(json.dumps(config, default=str))
        text = json.dumps(peft_config or plain, indent=2, ensure_ascii=False)
        (new / CONFIG).write_text(f"{text}\n", encoding="utf-8")
        # safetensors lets only the owner read its file.
        shutil.copymode(new / CONFIG, new / file)
        card = model_card(folder.name, plain, results, peft)
        (new / CARD).write_text(card, encoding="utf-8")


def check_target(folder: Path, overwrite: bool) -> None:
    """Raises `UserError` if an export must not be written to `folder`."""
    is_empty = folder.is_dir() and not any(folder.iterdir())
    if is_empty or not folder.exists():
        return
    is_export = (folder / CONFIG).is_file()
    if is_export:
        # Whatever else lies in the folder would be lost with the export that is replaced.
        is_export = {path.name for path in folder.iterdir()}.issubset(FILES)
    if is_export and overwrite:
        return
    holds = "something else: choose another"
    if is_export:
        holds = (
            "an export: choose another, or replace it with `vlmtune export --out FOLDER "
            "--overwrite`"
        )
    raise UserError(f"expected a new folder, {folder} holds {holds}")


def _scores(result: Result) -> dict[str, Any]:
    """The numbers of a benchmark as JSON values, without the gallery."""
    return {
        "benchmark": result.benchmark,
        "version": result.version,
        "convention": result.convention,
        "primary": result.primary,
        "metrics": {name: vars(metric) for name, metric in result.metrics.items()},
        "citation": result.citation,
    }
