"""Where the numbers of a run come from, as the report says it.

In: runs. Out: names of facts with texts. Never: a fact that report.json lacks.
"""

from collections.abc import Sequence

from vlmtune.report import table
from vlmtune.report.run_report import RunReport
from vlmtune.report.seeds import SeededRun

COMMON = ("backbone", "data", "seed", "date", "hardware", "versions")
SHORT_DIGEST = 12  # letters
NAMED = 3  # texts of one fact at the top of a page


def origin_facts(run: RunReport) -> dict[str, str]:
    """What is known of a run by name; of another tool's run that is its backbone."""
    origin = run.provenance
    seed = "" if origin.seed is None else str(origin.seed)
    if isinstance(run, SeededRun):
        seed = run.seeds
    if not origin.known:
        return {"backbone": origin.backbone}
    versions = [f"{library} {version}" for library, version in origin.versions.items()]
    # In the order in which the page shows them; empty ones go below.
    facts = {
        "backbone": f"{origin.backbone} ({origin.fingerprint[:SHORT_DIGEST]})",
        "adapter": origin.adapter,
        "trainable": f"{table.count(origin.trainable_parameters)} parameters",
        "data": origin.data,
        "time": table.duration(origin.seconds) if origin.seconds else "",
        "seed": seed,
        "date": origin.date.replace("T", " ").removesuffix("+00:00"),
        "command": str(origin.config.get("command", "")),
        "hardware": str(origin.config.get("hardware", "")),
        "commit": origin.commit,
        "versions": ", ".join(versions),
    }
    for name, text in list(facts.items()):
        if not text:
            del facts[name]
    return facts


def common_facts(runs: Sequence[RunReport]) -> dict[str, str]:
    """The facts at the top of a page: what the runs have, each text once, the first few."""
    texts: dict[str, list[str]] = {name: [] for name in COMMON}
    for run in runs:
        if run.text_only or not run.provenance.known:
            continue
        facts = origin_facts(run)
        for name in COMMON:
            if name in facts and facts[name] not in texts[name]:
                texts[name].append(facts[name])
    out = {}
    for name, different in texts.items():
        if len(different) > NAMED:
            different[NAMED:] = ["..."]
        if different:
            out[name] = "; ".join(different)
    return out
