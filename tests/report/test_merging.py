from dataclasses import replace

from vlmtune.report.merging import merged, same_model


def config(run, **more):
    return replace(run, provenance=replace(run.provenance, config=more))


def test_what_was_measured_of_one_model_is_one_run(make_run):
    whole = make_run("lora")
    first, second = ((whole.results[0],), (whole.results[1],))
    probe = config(replace(whole, results=first, not_run=(("style", "no weights"),)), digest="a")
    probe = config(probe, digest="a", probe={"steps": 3})
    evaluation = config(replace(whole, results=second), digest="a", benchmarks={"one": 1})
    curves = {"accuracy": ((0, 0.5),)}
    later = config(
        replace(evaluation, results=(), curves=curves), digest="a", benchmarks={"two": 2}
    )
    assert same_model([probe, evaluation, later]) == [[0, 1, 2]]
    one = merged([probe, evaluation, later])
    assert one.results == whole.results
    assert one.curves == whole.curves | curves
    assert one.not_run == (("style", "no weights"),)
    benchmarks = {"one": 1, "two": 2}
    assert one.provenance.config == {"digest": "a", "benchmarks": benchmarks, "probe": {"steps": 3}}
    assert merged([evaluation]) is evaluation


def test_other_weights_names_and_benchmarks_stay_apart(make_run):
    whole = make_run("lora")
    first, second = (config(replace(whole, results=(x,)), digest="a") for x in whole.results)
    other = config(second, digest="b")
    renamed, again = replace(second, name="other"), replace(second, results=first.results)
    unknown = config(second)
    unable = replace(second, not_run=((first.results[0].benchmark, "no files"),))
    text_only = replace(second, text_only=True)
    for run in (other, renamed, again, unknown, unable, text_only):
        assert same_model([first, run]) == [[0], [1]]
    backbone = replace(second, provenance=replace(second.provenance, fingerprint="other"))
    assert same_model([first, backbone, second]) == [[0, 2], [1]]
