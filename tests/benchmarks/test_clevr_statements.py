import torch

from tests.benchmarks.json_files import touch
from tests.benchmarks.models import check
from vlmtune.benchmarks.clevr_statements import ClevrStatements
from vlmtune.benchmarks.files import write_json


def row(image: int, family: str, answer: str, other: str, **more) -> dict:
    texts = {"statement": f"the answer {image} is {answer}"}
    texts["false_statement"] = f"the answer {image} is {other}"
    known = {"image_filename": f"{image}.png", "answer": answer, "false_answer": other}
    form = {"structure": "one_hop", "type": "exist", "topology": "chain", "relation": "spatial"}
    return {**texts, **known, **form, "family": family, "size": 7, "effective_size": 5} | more


ROWS = [
    row(0, "a", "yes", "no"),
    row(0, "b", "2", "3", type="count", size=8),
    row(1, "a", "yes", "no", effective_size=7),
    row(2, "a", "no", "yes"),
    row(3, "b", "3", "2", type="count", topology="tree", structure="single_or"),
    row(3, "a", "yes", "no"),
]


def benchmark(folder, rows, **options) -> ClevrStatements:
    touch(folder, *(f"{image}.png" for image in range(4)))
    path = write_json(folder / "questions_val.json", {"info": {}, "questions": rows})
    return ClevrStatements(str(path), str(folder), **options)


def measured(made: ClevrStatements, right: list[bool]):
    """The result where the items in `right` are right."""
    items = made.items
    scores = torch.zeros(items.shape, dtype=torch.float64)
    for (true, false), won in zip(items.positions.tolist(), right, strict=True):
        scores[true if won else false] = 1.0
    return made.evaluate(scores)


def shares(names, chance=0.5):
    """Wins and items as `check` takes them."""
    return {f"accuracy{name}": (won / n, n, chance) for name, (won, n) in names.items()}


def test_accuracy_is_reported_by_every_property(tmp_path):
    right = [True, False, True, True, False, False]
    result = measured(benchmark(tmp_path, ROWS, seed=None), right)
    of = {"": (3, 6), "/a": (3, 4), "/b": (0, 2), "/relation=spatial": (3, 6)}
    of |= {"/structure=one_hop": (3, 5), "/structure=single_or": (0, 1)}
    of |= {"/type=exist": (3, 4), "/type=count": (0, 2)}
    of |= {"/topology=chain": (3, 5), "/topology=tree": (0, 1)}
    of |= {"/size=7": (3, 5), "/size=8": (0, 1)}
    of |= {"/effective_size=5": (2, 5), "/effective_size=7": (1, 1)}
    check(result, shares(of) | {"macro_accuracy": ((3 / 4 + 0) / 2,)})
    properties = {name for name in result.metrics if "=" in name}
    assert properties == {f"accuracy{name}" for name in of if "=" in name}


def test_questions_that_absolute_positions_answer_can_be_left_out(tmp_path):
    absolute = ["yes", "no", "none", "no", "no"]
    rows = [one | {"absolute": x} for one, x in zip(ROWS, absolute, strict=False)]
    result = measured(benchmark(tmp_path, [*rows, ROWS[5]], seed=None), [True, False, *[True] * 4])
    of = {"/absolute=yes": (1, 1), "/absolute=no": (2, 3), "/absolute=none": (1, 1)}
    check(result, shares({**of, "/relative=one_hop": (1, 2), "/relative=single_or": (1, 1)}))


def test_the_mode_of_a_family_is_counted_on_the_other_half(tmp_path):
    # Images 0 and 2 are one half, 1 and 3 the other. In each, family a says yes and no:
    # half 0/2: yes 1, no 1 (a tie for the other half); half 1/3: yes 2, so 0 wins and 2 loses.
    # Family b: 2 in half 0/2, 3 in half 1/3: the mode of the other half is always wrong.
    result = measured(benchmark(tmp_path, ROWS, seed=None), [True] * 6)
    credits = {"a": [1.0, 0.5, 0.0, 0.5], "b": [0.0, 0.0]}
    # Here each family is of one type; in what follows both are.
    modes = (sum(map(sum, credits.values())) / 6, 6)
    check(result, {"family_mode_accuracy": modes, "type_mode_accuracy": modes})
    rows = [one | {"type": "query"} for one in ROWS]
    rows[1] |= {"answer": "no", "false_answer": "yes"}
    result = measured(benchmark(tmp_path, rows, seed=None), [True] * 6)
    # Half 0/2 says yes 1, no 2; half 1/3 says yes 2, 3 once.
    check(result, {"type_mode_accuracy": ((1 + 0 + 0 + 0 + 0.5 + 0) / 6,)})
    assert result.metrics["n_gram_accuracy"].n == 6


def test_an_n_gram_model_finds_what_the_text_gives_away(tmp_path):
    rows = [
        row(i, "a", "yes", "no", statement=f"it is fine {i}", false_statement=f"it is bad {i}")
        for i in range(4)
    ]
    result = measured(benchmark(tmp_path, rows), [False] * 4)
    check(result, {"n_gram_accuracy": (1.0,), "family_mode_accuracy": (1.0,)})
    alone = measured(benchmark(tmp_path, ROWS[:2]), [True, True])  # both need two images
    assert not {"n_gram_accuracy", "family_mode_accuracy"} & alone.metrics.keys()


def test_a_limit_leaves_the_properties_with_their_items(tmp_path):
    made = benchmark(tmp_path, ROWS, limit=3)
    metrics = measured(made, [True] * 3).metrics
    for name in ("structure", "type", "topology", "relation", "size", "effective_size"):
        assert sum(m.n for key, m in metrics.items() if key.startswith(f"accuracy/{name}=")) == 3
