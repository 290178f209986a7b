"""Where the numbers of a run come from, as the report says it.

In: runs. Out: names of facts with texts. Never: a fact that report.json lacks.
"""

from collections.abc import Sequence

from vlmtune.report import table
from vlmtune.report.run_report import RunReport
from vlmtune.report.seeds import SeededRun

COMMON = ("backbone", "data", "seed", "date", "hardware", "versions")
SHORT_DIGEST, NAMED = 12, 3


def origin_facts(run: RunReport) -> dict[str, str]:
    """What is known of a run by name; of another tool's run that is its backbone."""
    origin = run.provenance
    seed = "" if origin.seed is None else str(origin.seed)
    if isinstance(run, SeededRun):
        seed = run.seeds
    if not origin.known:
        return {"backbone": origin.backbone}
    facts = {
        "backbone": f"{origin.backbone} ({origin.fingerprint[:SHORT_DIGEST]})",
        "adapter": origin.adapter,
        "trainable": f"{table.count(origin.trainable_parameters)} parameters",
        "data": origin.data,
        "time": table.duration(origin.seconds) if origin.data else "",
        "seed": seed,
        "date": origin.date.replace("T", " ").removesuffix("+00:00"),
        "command": str(origin.config.get("command", "")),
        "hardware": str(origin.config.get("hardware", "")),
        "commit": origin.commit,
        "versions": ", ".join(map(" ".join, origin.versions.items())),
    }
    return {name: text for name, text in facts.items() if text}


def common_facts(runs: Sequence[RunReport]) -> dict[str, str]:
    """The facts at the top of a page: what the runs have, each text once, the first few."""
    listed = [origin_facts(run) for run in runs if run.provenance.known and not run.text_only]
    out = {}
    for name in COMMON:
        texts = list(dict.fromkeys(facts[name] for facts in listed if name in facts))
        if texts:
            out[name] = "; ".join([*texts[:NAMED], *["..."] * (len(texts) > NAMED)])
    return out
