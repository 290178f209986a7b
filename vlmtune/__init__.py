"""vlmtune: fine-tunes vision-language models so that they understand compositions.

`vlmtune.load(name)` gives a model that scores images against texts. The rooms of the package offer
their public names, such as `vlmtune.adapters.LoRA`:

    data          shards to batches
    backbones     pre-trained models: images and texts to features
    adapters      features to scores: the trained part
    pairs         which pairs a joint adapter is trained on
    objectives    scores to a loss
    metrics       scores to numbers
    benchmarks    annotation files to results
    training      modules and callbacks for Lightning
    evaluation    many benchmarks on one model, each input encoded once
    results       what a benchmark reports
    model         a model from a name, a folder, a checkpoint or an export
    export        a trained model as a folder for others
    report        results as tables and a page
    search        images found by captions
    sources       where data sets and weights come from, and how
    probing       what embeddings know of transformations

A room and its names are imported on use: `import vlmtune` imports no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = "0.1.0"
