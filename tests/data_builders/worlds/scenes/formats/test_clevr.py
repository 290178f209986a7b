def test_keys_are_clevrs(clevr):
    for scene in clevr.values():
        assert {"split", "image_index", "image_filename", "objects", "directions",
                "relationships"} <= set(scene)  # fmt: skip
        for thing in scene["objects"]:
            assert {"shape", "size", "material", "color", "3d_coords", "rotation",
                    "pixel_coords"} <= set(thing)  # fmt: skip
            assert len(thing["3d_coords"]) == len(thing["pixel_coords"]) == 3


def test_relationships_mean_what_clevr_means(clevr):
    for scene in clevr.values():
        things = scene["objects"]
        assert set(scene["relationships"]) == {"left", "right", "front", "behind"}
        for name, lists in scene["relationships"].items():
            axis = scene["directions"][name]
            for i, a in enumerate(things):
                expected = {
                    j
                    for j, b in enumerate(things)
                    if j != i
                    and sum(
                        (q - p) * d
                        for p, q, d in zip(a["3d_coords"], b["3d_coords"], axis, strict=True)
                    )
                    > 0.2
                }
                assert set(lists[i]) == expected


def test_left_is_left_in_the_picture(clevr):
    agree = total = 0
    for scene in clevr.values():
        for i, lefts in enumerate(scene["relationships"]["left"]):
            for j in lefts:
                x, y = (scene["objects"][k]["pixel_coords"][0] for k in (i, j))
                agree, total = agree + (y < x), total + 1
    assert total > 20
    assert agree / total > 0.95


def test_boxes_surround_the_centres(clevr):
    inside = total = 0
    for scene in clevr.values():
        for thing in scene["objects"]:
            (x, y, w, h), (px, py, _) = thing["box"], thing["pixel_coords"]
            inside += x - 1 <= px <= x + w + 1 and y - 1 <= py <= y + h + 1
            total += 1
    assert inside / total > 0.9
