import numpy as np


def test_relationships_mean_what_clevr_means(clevr):
    for scene in clevr.values():
        things = scene["objects"]
        assert set(scene["relationships"]) == {"left", "right", "front", "behind"}
        for name, lists in scene["relationships"].items():
            axis = scene["directions"][name]
            along = np.array([thing["3d_coords"] for thing in things]) @ axis
            for i, others in enumerate(lists):
                assert set(others) == set(np.flatnonzero(along - along[i] > 0.2).tolist())


def test_left_is_left_in_the_picture_and_boxes_surround_the_centres(clevr):
    agree = total = 0
    for scene in clevr.values():
        for i, lefts in enumerate(scene["relationships"]["left"]):
            for j in lefts:
                x, y = (scene["objects"][k]["pixel_coords"][0] for k in (i, j))
                agree, total = agree + (y < x), total + 1
    assert total > 20
    assert agree / total > 0.95
    inside = total = 0
    for scene in clevr.values():
        for thing in scene["objects"]:
            (x, y, w, h), (px, py, _) = thing["box"], thing["pixel_coords"]
            inside += x - 1 <= px <= x + w + 1 and y - 1 <= py <= y + h + 1
            total += 1
    assert inside / total > 0.9
