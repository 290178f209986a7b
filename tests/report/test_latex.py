from dataclasses import replace

from vlmtune.report.latex import to_latex


def test_primary_numbers_with_the_best_bold(make_run):
    runs = [make_run("zero_shot", 0.2, trained=0), make_run("mm & co", 0.4)]
    lines = to_latex(runs).splitlines()
    assert lines[1:4] == [
        r"\begin{tabular}{llrrrr}",
        r"\toprule",
        r"Benchmark & Metric & $n$ & Chance & zero\_shot & mm \& co \\",
    ]
    assert lines[5] == (
        r"cola\_multi & accuracy $\uparrow$ & 210 & 25.0 \% & 20.0 \% & \textbf{40.0 \%} \\"
    )
    assert lines[6] == r" &  &  &  & {\scriptsize [15.0--25.0]} & {\scriptsize [35.0--45.0]} \\"
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]
    assert not any("mean\\_rank" in line for line in lines)


def test_what_is_missing_is_a_dash_and_conventions_are_named(make_run):
    run = make_run("a")
    other = replace(run.results[0], convention="reference")
    text = to_latex([run, replace(run, name="b", results=(other,))])
    assert r"cola\_multi & accuracy $\uparrow$ & 210 & 25.0 \% & 40.0 \% & -- \\" in text
    assert (
        r"cola\_multi (reference) & accuracy $\uparrow$ & 210 & 25.0 \% & -- & 40.0 \% \\" in text
    )
