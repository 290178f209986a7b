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
