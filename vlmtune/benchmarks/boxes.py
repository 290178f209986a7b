"""Boxes of images, from the numbers of an annotation file."""

from typing import Any

Box = tuple[int, int, int, int]


def whole_box(x: Any, y: Any, width: Any, height: Any) -> Box:
    """The box in whole pixels that PIL's `crop((x, y, x + width, y + height))` cuts.

    Corners are rounded, not sizes.

    Args:
        x: Left edge, a number or the text of one.
        y: Upper edge.
        width: Width.
        height: Height.

    Raises:
        ValueError: A value is no finite number, or the box has no area.

    Example:
        >>> whole_box("237.0", 391, 402.0, 208)
        (237, 391, 402, 208)
        >>> whole_box(0.4, 0, 1.2, 1)
        (0, 0, 2, 1)
    """
    left, top, wide, high = (_number(value) for value in (x, y, width, height))
    try:
        first, last = (round(left), round(top)), (round(left + wide), round(top + high))
    except OverflowError as error:
        raise ValueError(f"an infinite number in the box {(x, y, width, height)}") from error
    if last[0] <= first[0] or last[1] <= first[1]:
        raise ValueError(f"the box {(x, y, width, height)}, which has no area")
    return (*first, last[0] - first[0], last[1] - first[1])


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} where a number should be")
    return float(value)
