import math
import random

import numpy as np
import pytest

from tests.refusals import refused
from vlmtune.metrics.correlation import pearson


def integrated(r: float, n: int) -> float:
    """The two-sided p value, by integrating the density of no correlation."""
    # r = sin(a): the density is cos(a)^(n-3), smooth also for n = 3.
    angle = np.linspace(math.asin(abs(r)), math.pi / 2, 200_001)
    whole = np.linspace(0.0, math.pi / 2, 200_001)
    return float(
        np.trapezoid(np.cos(angle) ** (n - 3), angle)
        / np.trapezoid(np.cos(whole) ** (n - 3), whole)
    )


@pytest.mark.parametrize("n", [3, 4, 5, 6, 7, 10, 11, 30, 31])
def test_coefficient_and_p_value(n):
    rng = random.Random(n)
    for slope in (0.0, 0.4, -2.0):
        x = [rng.gauss(0, 1) for _ in range(n)]
        y = [slope * one + rng.gauss(0, 1) for one in x]
        found = pearson(x, y)
        assert found.n == n
        assert found.r == pytest.approx(np.corrcoef(x, y)[0, 1])
        assert found.p == pytest.approx(integrated(found.r, n), abs=1e-6)


def test_known_critical_values():
    """Tables of the 5 % level: r = 0.878 for 5 pairs, 0.632 for 10."""
    for n, r in ((5, 0.8783), (10, 0.6319)):
        # Points with exactly that coefficient: y = r u + sqrt(1 - r^2) v, u and v orthonormal.
        u = np.linspace(-1, 1, n)
        v = u**2 - (u**2).mean()
        y = r * u / np.linalg.norm(u) + math.sqrt(1 - r * r) * v / np.linalg.norm(v)
        assert pearson(u.tolist(), y.tolist()).p == pytest.approx(0.05, abs=2e-4)


def test_borders():
    assert pearson([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]).p == pytest.approx(0.0, abs=1e-7)
    assert pearson([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]).r == pytest.approx(-1.0)
    assert pearson([1.0, 1.0, 1.0], [3.0, 2.0, 1.0]).r is None
    assert pearson([1.0, 2.0], [1.0, 3.0]).p is None
    with refused("two models or more, got 1 and 1"):
        pearson([1.0], [1.0])
    with refused("got 2 and 3"):
        pearson([1.0, 2.0], [1.0, 2.0, 3.0])


# PUG's table 9, the nine models of its table 1: ImageNet, then the factors as in FACTORS.
FACTORS = ["Camera_Yaw", "Camera_Pitch", "Camera_Roll", "Object_Yaw", "Object_Pitch",
           "Object_Roll", "Object_Scale", "Object_Texture", "Scene_Light",
           "Background"]  # fmt: skip
ACCURACIES = (
    (81.5, 38.1, 33.1, 26.9, 38.0, 23.6, 22.9, 35.7, 27.0, 13.6, 29.5),  # ResNet50
    (82.3, 43.4, 35.9, 29.4, 45.1, 26.7, 25.6, 39.7, 31.1, 14.1, 32.8),  # ResNet101
    (80.3, 40.5, 32.3, 26.0, 42.1, 23.6, 22.8, 37.3, 23.4, 6.3, 20.5),  # BiT
    (83.6, 56.0, 45.6, 41.8, 56.9, 35.3, 34.2, 52.9, 40.1, 19.1, 42.0),  # Swin
    (84.3, 37.5, 34.3, 31.7, 38.0, 21.8, 20.5, 33.0, 28.5, 4.1, 26.6),  # ViT-Base
    (85.8, 52.2, 40.4, 37.1, 52.4, 30.4, 28.4, 46.4, 42.9, 8.9, 34.6),  # ViT-Large
    (66.6, 44.0, 31.5, 24.1, 43.8, 24.8, 21.8, 42.2, 34.7, 3.3, 26.0),  # CLIP B/32 (2B)
    (62.9, 41.7, 30.2, 22.1, 41.6, 23.8, 20.9, 40.1, 34.4, 5.7, 24.4),  # CLIP B/32 (400M)
    (72.8, 52.3, 39.8, 35.7, 51.8, 29.0, 26.4, 50.6, 41.1, 4.3, 33.0),  # CLIP L/14 (400M)
)
TABLE_10 = ((0.12, 0.76), (0.53, 0.14), (0.61, 0.08), (0.18, 0.64), (0.29, 0.45),
            (0.45, 0.22), (-0.05, 0.90), (-0.10, 0.81), (0.53, 0.14), (0.43, 0.25))  # fmt: skip


@pytest.mark.parametrize("number", range(10), ids=FACTORS)
def test_table_10_of_pug(number):
    """From accuracies rounded to a tenth of a percent, so to a hundredth."""
    imagenet = [row[0] for row in ACCURACIES]
    found = pearson(imagenet, [row[1 + number] for row in ACCURACIES])
    r, p = TABLE_10[number]
    assert found.r == pytest.approx(r, abs=0.011)
    assert found.p == pytest.approx(p, abs=0.011)
