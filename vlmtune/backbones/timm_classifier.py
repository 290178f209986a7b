"""The classifier of an image model of timm, and what its classes are called.

In: a network of timm. Out: its classifier, on the pooled features that the network is left with.
"""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset
from torch import Tensor, nn


@dataclass(frozen=True)
class TimmClassifier:
    """Scores classes by pooled features, on the CPU.

    It is not a module: weights of a backbone are those that make its features.
    """

    head: nn.Module  # a linear layer, or a small network
    labels: tuple[str, ...]  # what the classes are called, in the order of the scores

    def __call__(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n C"]:
        """Returns the score of each class."""
        features = features.cpu().float()
        if isinstance(self.head, nn.Conv2d):  # BiT's is a convolution of one pixel
            return self.head(features[:, :, None, None]).flatten(1)
        return self.head(features)


def take_classifier(network: Any) -> TimmClassifier | None:
    """Takes the classifier off a network; None where its scores need more than pooled features."""
    head = network.get_classifier()
    # Sequencer's classifier holds the pooling too, and the reset below empties it.
    head = getattr(head, "fc", head)
    # Labels are read first: the reset forgets how many classes there were.
    labels = _labels(network)
    network.reset_classifier(0)
    # LeViT and distilled DeiT give a pair of classifiers, CrossViT a list of them, VOLO adds one of
    # its patches, and self-supervised models give an identity.
    is_one = isinstance(head, nn.Module) and not isinstance(head, nn.ModuleList)
    if not is_one or hasattr(network, "aux_head") or isinstance(head, nn.Identity):
        return None
    return TimmClassifier(head.float().eval().requires_grad_(False), labels)


def _labels(network: Any) -> tuple[str, ...]:
    # The config of a fine-tuned model names its own classes.
    named = network.pretrained_cfg.get("label_names") or ()
    if len(named) == network.num_classes:
        return tuple(named)
    if subset := infer_imagenet_subset(network):
        return tuple(ImageNetInfo(subset).label_names())
    return tuple(map(str, range(network.num_classes)))
