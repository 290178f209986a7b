"""A probe: a linear map or one hidden layer on frozen embeddings, with one head or two.

In: embeddings, classes of transformations, semantic classes. Out: predictions for other embeddings.
Never: a gradient into the model that made the embeddings.
Source: Rashtchian et al. 2023, section 3 and appendix B.2.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from vlmtune.errors import UserError
from vlmtune.storage.progress import progress

TRANSFORMATION = "transformation"
SEMANTIC = "semantic"
Embeddings = Float[Tensor, "n d"]
Targets = Mapping[str, Int[Tensor, "n"]]
"""The class of each embedding, by head."""


@dataclass(frozen=True)
class ProbeSpec:
    """What is trained.

    Attributes:
        width: Of the hidden layer; 0 for a linear probe.
        heads: "transformation", "semantic" or both.
        dropout: Of the hidden layer.
    """

    width: int
    heads: tuple[str, ...]
    dropout: float = 0.2

    @property
    def name(self) -> str:
        """The name in reports.

        Example:
            >>> ProbeSpec(2048, ("semantic", "transformation")).name
            'mlp-2048/2-head'
            >>> ProbeSpec(0, ("semantic",)).name
            'linear/semantic'
        """
        network = f"mlp-{self.width}" if self.width else "linear"
        head = "2-head" if len(self.heads) == 2 else self.heads[0]
        return f"{network}/{head}"


@dataclass(frozen=True)
class Training:
    """How probes are trained; the paper's numbers, but for `steps`.

    Attributes:
        steps: Optimizer steps; the learning rate falls linearly to 0.
        batch_size: Embeddings of a step.
        learning_rate: Of the first step.
        runs: Probes of each kind, with other first weights and batches.
        seed: Of the first run.
    """

    steps: int = 1000
    batch_size: int = 1024
    runs: int = 5
    seed: int = 0
    learning_rate: float = 1e-3


class Probe(nn.Module):
    """The network, with embeddings standardised by the mean and deviation of the training set.

    Args:
        spec: Its form.
        features: Training embeddings (n, d), for mean and deviation.
        classes: Number of classes of each head, by name.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, spec: ProbeSpec, features: Embeddings, classes: Mapping[str, int]) -> None:
        super().__init__()
        d = features.shape[1]
        self.register_buffer("mean", features.mean(dim=0))
        # A dimension that never varies is only centred.
        deviation = features.std(dim=0, correction=0)
        deviation = torch.where(deviation > 0, deviation, 1.0)
        self.register_buffer("deviation", deviation)
        self.trunk = nn.Sequential()
        width = d
        if spec.width:
            width = spec.width
            self.trunk.append(nn.Linear(d, width))
            self.trunk.append(nn.ReLU())
            self.trunk.append(nn.Dropout(spec.dropout))
        self.heads = nn.ModuleDict()
        for name in spec.heads:
            self.heads[name] = nn.Linear(width, classes[name])

    def forward(self, features: Embeddings) -> dict[str, Float[Tensor, "n _"]]:
        """Returns the logits of each head."""
        standardised = (features - self.mean) / self.deviation
        state = self.trunk(standardised)
        return {name: head(state) for name, head in self.heads.items()}


def train_probe(
    spec: ProbeSpec,
    features: Embeddings,
    targets: Targets,
    classes: Mapping[str, int],
    training: Training,
    run: int = 0,
) -> Probe:
    """Trains one probe with Adam on the sum of the cross-entropies of its heads.

    Args:
        spec: Its form.
        features: Training embeddings, on the device to train on.
        targets: The class of each embedding, by head.
        classes: Number of classes of each head.
        training: Steps, batches and seed.
        run: Which of the runs it is.
    """
    n = len(features)
    device = features.device
    size = min(n, training.batch_size)
    # The seed decides the first weights, the order of rows and the dropout.
    with torch.random.fork_rng():
        torch.manual_seed(training.seed + run)
        probe = Probe(spec, features, classes).to(device).train()
        optimizer = torch.optim.Adam(probe.parameters(), training.learning_rate)
        # Linear decay to 0, as in appendix B.2.
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 - i / training.steps)
        order = torch.randperm(n)
        start = 0
        loss = torch.zeros(())
        for _ in range(training.steps):
            # Rows that do not fill a batch wait for another epoch, in another order.
            if start + size > n:
                order = torch.randperm(n)
                start = 0
            rows = order[start : start + size].to(device)
            start += size
            logits = probe(features[rows])
            # Two heads are trained on the plain sum, without a weight between them.
            losses = [cross_entropy(logits[name], targets[name][rows]) for name in spec.heads]
            loss = torch.stack(losses).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    # A diverged probe would still predict, and its accuracy would look like a result.
    if not bool(torch.isfinite(loss)):
        raise UserError("expected a finite loss of the probe, got NaN or infinity: check the model")
    return probe.eval()


def predict(probe: Probe, features: Embeddings) -> dict[str, Int[Tensor, "n"]]:
    """Returns the most probable class of each embedding, by head, on the CPU."""
    predicted: dict[str, list[Tensor]] = {name: [] for name in probe.heads}
    with torch.no_grad():
        # In parts, as hidden layers are up to 16,384 wide.
        for part in features.split(8192):
            for name, logits in probe(part).items():
                predicted[name].append(logits.argmax(dim=-1))
    return {name: torch.cat(parts).cpu() for name, parts in predicted.items()}


def run_probes(
    spec: ProbeSpec,
    train: Embeddings,
    targets: Targets,
    test: Float[Tensor, "m d"],
    classes: Mapping[str, int],
    training: Training,
) -> dict[str, Int[Tensor, "r m"]]:
    """Trains all runs of a probe and returns their predictions by head."""
    # Runs differ in their seed alone, so that their spread is that of the training.
    predictions: dict[str, list[Tensor]] = {name: [] for name in spec.heads}
    with progress(f"probe {spec.name}", training.runs) as advance:
        for run in range(training.runs):
            probe = train_probe(spec, train, targets, classes, training, run)
            for name, predicted in predict(probe, test).items():
                predictions[name].append(predicted)
            advance(1)
    return {name: torch.stack(runs) for name, runs in predictions.items()}
