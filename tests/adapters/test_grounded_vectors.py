"""Grounded vectors: lengths, and scores that are products of the recall vectors of the words."""

import pytest
import torch
from torch.nn.functional import cosine_similarity

from tests.adapters.families import attached, embedded, features
from vlmtune.adapters import GroundedVectors, GroundedWords


def words():
    """Trained grounded words, whose locations count."""
    adapter, model = attached(GroundedWords(heads=2, leak=0.2))
    for parameter in adapter.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return adapter, model


def recalled(adapter, model):
    image, text = features(adapter, model)
    of_image = adapter.recall_image(adapter.prepare_image(image))
    return of_image, adapter.recall_text(adapter.prepare_text(text))


@torch.no_grad()
def test_cosines_have_the_order_of_the_scores_of_recall_vectors():
    trained, model = words()
    vectors = GroundedVectors.of(trained, model, 2.0).eval()
    image, text = recalled(trained, model)
    # The frozen part comes first, and has the weight 1 there.
    image[:, : model.embed_dim] *= 2
    expected = image @ text.T
    scores = vectors(*features(vectors, model)).values
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)
    images, texts = embedded(vectors, model)
    torch.testing.assert_close(images.norm(dim=1), torch.ones(len(images)))
    torch.testing.assert_close(texts.norm(dim=1), torch.ones(len(texts)))
    assert images.shape[1] == texts.shape[1] == image.shape[1] + 2
    frozen = model.logit_scale * 2
    norms = ((frozen**2 + 16**2) * (1 + 512**2)) ** 0.5
    cosine = float(images[1] @ texts[2])
    assert norms * cosine == pytest.approx(float(expected[1, 2]), rel=1e-4)


@torch.no_grad()
def test_a_longer_vector_is_shortened():
    trained, model = words()
    image, text = recalled(trained, model)
    adapter = GroundedWords(**trained.init_args)
    short = GroundedVectors(adapter, image_length=1e-3, text_length=1e-3)
    short.attach(model)
    short.eval()
    adapter.load_state_dict(trained.state_dict())
    # Both are longer, so nothing but their direction is left.
    images, texts = embedded(short, model)
    cosines = cosine_similarity(image[:, None], text[None], dim=2)
    torch.testing.assert_close(images @ texts.T, cosines, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_directions_keep_the_scores_of_the_images_that_they_span():
    trained, model = words()
    whole = GroundedVectors.of(trained, model, 2.0).eval()
    image, text = features(whole, model)
    # Four images differ in three directions.
    short = GroundedVectors.of(trained, model, 2.0, directions=3).eval()
    short.fit_directions(whole.embed_image(image))
    torch.testing.assert_close(
        short(image, text).values, whole(image, text).values, rtol=1e-3, atol=1e-3
    )
    assert short.embed_image(image).shape[1] == model.embed_dim + 3 + 1 + 2
    fewer = GroundedVectors.of(trained, model, 2.0, directions=1).eval()
    fewer.fit_directions(whole.embed_image(image))
    lost = fewer(image, text).values - whole(image, text).values
    assert float(lost.abs().max()) > 0.01
