import torch

from vlmtune.benchmarks.queries import TRUE, query_row


def naive(scores: list[float], true: list[bool], best: int) -> list[int]:
    """The candidates of a row, by sorting all of them."""

    def first(positions: list[int], most: int) -> list[int]:
        return sorted(positions, key=lambda i: (-scores[i], i))[:most]

    chosen = {*first([*range(len(scores))], best)}
    chosen.update(first([i for i, holds in enumerate(true) if holds], TRUE))
    chosen.update(first([i for i, holds in enumerate(true) if not holds], 1))
    return sorted(chosen, key=lambda i: (-scores[i], true[i], i))


def test_the_captions_of_a_query_are_those_of_sorting_whatever_ties():
    generator = torch.Generator().manual_seed(0)
    for number in range(200):
        n = 2 + number % 30
        scores = torch.randint(0, 6, (n,), generator=generator) / 4
        true = torch.rand(n, generator=generator) < number / 200
        best = 1 + number % 4
        names = tuple(map(str, range(n)))
        row = query_row([], names, scores, true, best, id="a/0", benchmark="a", outcome=0.0)
        expected = [names[i] for i in naive(scores.tolist(), true.tolist(), best)]
        assert list(row.captions) == expected
