from vlmtune.report.media import COLUMNS, caption, metric_table, retrievals, strip


def test_one_row_for_each_metric(make_run):
    results = make_run().results
    table = metric_table(results)
    assert [row[:3] for row in table] == [
        [result.benchmark, name, metric.value]
        for result in results
        for name, metric in result.metrics.items()
    ]
    assert {len(row) for row in table} == {len(COLUMNS)}


def test_a_strip_shows_what_is_there(make_run, tmp_path):
    example = make_run().results[0].examples[0]
    whole = strip(example)
    assert whole.size == (192 + 100, 192)
    assert whole.getpixel((5, 5))[0] > 200  # red comes first
    assert whole.getpixel((195, 5))[2] > 200
    (tmp_path / "0.png").unlink()
    assert strip(example).size == (100, 192)
    (tmp_path / "1.png").unlink()
    assert strip(example) is None


def test_retrievals_are_those_of_which_an_image_is_there(make_run, tmp_path):
    result = make_run().results[0]
    pictures, texts = retrievals(result)
    assert texts == [caption(example) for example in result.examples]
    assert [picture.size for picture in pictures] == [strip(e).size for e in result.examples]
    for image in tmp_path.glob("*.png"):
        image.unlink()
    assert retrievals(result) == ([], [])


def test_a_caption_says_what_is_true(make_run):
    right, wrong = make_run().results[0].examples
    assert caption(right) == "right: red cup <on> blue box (1.5 true, 0.5 false)"
    assert caption(wrong).startswith("wrong: ")
