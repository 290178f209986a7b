"""Pre-trains the small CLIP that ships in checkpoints/scenes-clip.

    python -m scripts.pretrain_scenes_clip --out runs/scenes-clip --minutes 60
    python -m scripts.pretrain_scenes_clip --out checkpoints/scenes-clip --measure

Images are scenes of the embedded world, captions unbound words (`web_caption`): the model
knows every word but not which attribute belongs to which object. Only captions of scenes of one
object, 5 % of all, state that. The loss is symmetric InfoNCE; the image embedding is the mean of
the patch tokens, with `--pool tok` the class token. `--init FOLDER` starts from weights;
`--new-words-only` trains only the embeddings of missing words, on `prompt_caption`. `--captions
bound` trains on true captions instead, of scenes without red and blue cubes and spheres. `--varied`
varies floors, sizes and light (`varied_scenes`).
"""

import argparse
import itertools
import json
import math
import multiprocessing
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from open_clip.model import CLIP
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from data_builders.phrases import both, with_article
from data_builders.worlds.scenes.captions import PREFIXES, query, sentences, vocabulary
from data_builders.worlds.scenes.sampling import Composition, WorldSpec
from data_builders.worlds.scenes.scene import Scene
from data_builders.worlds.scenes.series import Canvas, SceneSeries
from scripts import varied_scenes
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.backbones.word_tokenizer import WordTokenizer
from vlmtune.storage.files import write_atomically
from vlmtune.types import Features, FeatureSpec, Pooled

SIZE = 64
CONTEXT = 24
MEAN, STD = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)
HELD_OUT_SEED = 990_001
# Scenes of every kind, to cover every word: crowded, textured, and plain large ones.
SPECS = (
    WorldSpec(min_objects=1, max_objects=4),
    WorldSpec(min_objects=2, max_objects=3),
    WorldSpec(min_objects=2, max_objects=3, sizes=("large",), textures=("plain",)),
    WorldSpec(min_objects=2, max_objects=3, textures=("plain",)),
)
HELD_OUT = frozenset(itertools.product(("red", "blue"), ("cube", "sphere")))


def model_config(pool: str = "avg") -> dict:
    """The open_clip config of the model: 1.5M parameters; `pool` is open_clip's `pool_type`."""
    return {
        "embed_dim": 128,
        "vision_cfg": {"image_size": SIZE, "patch_size": 8, "layers": 4, "width": 128,
                       "head_width": 32, "pool_type": pool},
        "text_cfg": {"context_length": CONTEXT, "vocab_size": len(vocabulary()) + 3, "width": 128,
                     "heads": 4, "layers": 3},
    }  # fmt: skip


def web_caption(scene: Scene, rng: random.Random) -> str:
    """Returns a web-like caption that binds no two objects: "cube red blue metal sphere".

    Shapes and attributes are sampled independently, so captions do not tell two scenes of the same
    words apart. Of a scene of one object the caption can only state what is true of it. Half of the
    captions are phrases, with attributes assigned to shapes at random.
    """
    objects = scene.objects
    shapes = [o.shape for o in rng.sample(objects, rng.randint(1, min(4, len(objects))))]
    attributes = []
    for kind, probability in (("color", 0.7), ("material", 0.25), ("size", 0.25), ("texture", 0.3)):
        for obj in rng.sample(objects, len(objects)):
            if rng.random() < probability:
                attributes.append(getattr(obj, kind))
    attributes = [word for word in attributes if word != "plain" or rng.random() < 0.3]
    rng.shuffle(attributes)
    prefix = rng.choice(PREFIXES)
    if rng.random() < 0.5:
        # The words are dealt out in turn, whichever object they come from.
        nouns = []
        for i, shape in enumerate(shapes):
            dealt = attributes[i :: len(shapes)]
            nouns.append(with_article(" ".join([*dealt, shape])))
        return " ".join([*prefix.split(), " and ".join(nouns)])
    words = shapes + attributes
    if rng.random() < 0.12:
        words.append(scene.floor)
    if rng.random() < 0.08:
        words.append(scene.background)
    rng.shuffle(words)
    return " ".join([*prefix.split(), *words])


def prompt_caption(scene: Scene, rng: random.Random) -> str:
    """Returns a caption in the wording of PUG's prompts that binds no two objects.

    "a photo of a big sized cube textured with blue on a grass background" (PUG: Animals) or "this
    is a photo of a cube on the left ... in a grass environment" (PUG: SPAR).
    """
    objects = scene.objects
    sampled = rng.sample(objects, min(len(objects), rng.randint(1, 2)))
    shapes = []
    for obj in sampled:
        shape = "blank" if rng.random() < 0.05 else obj.shape
        shapes.append(shape)
    colors = [o.color for o in rng.sample(objects, len(shapes))]
    if rng.random() < 0.4:
        size = "big" if rng.choice(objects).size == "large" else "small"
        if rng.random() < 0.2:
            size = "medium"
        noun = f"{size} sized {shapes[0]}"
        if rng.random() < 0.6:
            noun += f" textured with {colors[0]}"
        return f"a photo of a {noun} on a {scene.floor} background"
    form = rng.choice(("plain", "colors", "sides"))
    axis = rng.choice((("left", "right"), ("bottom", "top")))
    sides = rng.sample(axis, len(shapes))
    nouns = []
    for shape, color, side in zip(shapes, colors, sides, strict=True):
        ends = {"plain": "", "colors": f" textured with {color}", "sides": f" on the {side}"}
        nouns.append(f"a {shape}{ends[form]}")
    text = f"this is a photo of {' and '.join(nouns)}"
    if form == "sides":
        text += " of the picture"
    return text + rng.choice(("", f" in a {scene.floor} environment"))


def bound_caption(scene: Scene, rng: random.Random) -> str:
    """A caption that states which color belongs to which object.

    Half are one of five sentences; half name all objects: "a red cone and a blue torus".
    """
    if rng.random() < 0.5:
        return rng.choice(sentences(scene, rng))
    objects = rng.sample(scene.objects, len(scene.objects))
    return " and ".join(with_article(query(o)) for o in objects)


CAPTIONS = {"web": web_caption, "bound": bound_caption}


def _chunk(job: tuple[WorldSpec, int, int, int, bool]) -> tuple[list[Scene], Tensor]:
    spec, seed, start, count, varied = job
    torch.set_num_threads(1)
    if varied:
        varied_scenes.vary_backdrops()
    any_visibility = replace(spec, min_visible=0.0)
    rendered = SceneSeries(any_visibility, seed).render(start, count, Canvas(SIZE))
    return [shown.scene for shown in rendered], torch.stack([shown.image for shown in rendered])


def world(
    count: int,
    seed: int,
    processes: int,
    forbidden: frozenset[Composition] = frozenset(),
    varied: bool = False,
) -> tuple[list[Scene], Tensor]:
    """Renders `count` scenes, as many of each spec: images (count, 64, 64, 3) uint8."""
    specs = SPECS + varied_scenes.SPECS if varied else SPECS
    each, step = count // len(specs), 500
    jobs = []
    for i, spec in enumerate(specs):
        allowed = replace(spec, forbidden=forbidden)
        starts = range(0, each, step)
        jobs += [(allowed, seed + i, start, min(step, each - start), varied) for start in starts]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        parts = pool.map(_chunk, jobs, chunksize=1)
    scenes = list(itertools.chain.from_iterable(scenes for scenes, _ in parts))
    return scenes, torch.cat([images for _, images in parts])


def pixels(images: Tensor) -> Tensor:
    """uint8 (n, 64, 64, 3) to normalised float (n, 3, 64, 64)."""
    return normalised((images.float() / 255).permute(0, 3, 1, 2))


def normalised(pictures: Tensor) -> Tensor:
    """Floats from 0 to 1 (n, 3, 64, 64) as the model reads them."""
    mean, std = (torch.tensor(x, device=pictures.device).view(3, 1, 1) for x in (MEAN, STD))
    return ((pictures - mean) / std).contiguous()


def initialise(model: CLIP, folder: Path) -> list[int]:
    """Copies the weights in `folder`, word by word; returns the tokens of missing words."""
    state = load_file(folder / "open_clip_model.safetensors")
    old = WordTokenizer((folder / "vocabulary.txt").read_text().split(), CONTEXT)
    new = WordTokenizer(vocabulary(), CONTEXT)
    rows = {0: 0, new.sot_token_id: old.sot_token_id, new.eot_token_id: old.eot_token_id}
    rows |= {row: old.ids[word] for word, row in new.ids.items() if word in old.ids}
    embedding: Tensor = model.token_embedding.weight.detach().cpu().clone()  # pyright: ignore
    embedding[list(rows)] = state["token_embedding.weight"][list(rows.values())]
    model.load_state_dict(state | {"token_embedding.weight": embedding})
    return [row for row in range(new.vocab_size) if row not in rows]


def only(model: CLIP, tokens: Sequence[int]) -> None:
    """Freezes everything except the embeddings of these tokens."""
    model.requires_grad_(False)
    embedding: Any = model.token_embedding
    chosen = torch.zeros_like(embedding.weight)
    chosen[list(tokens)] = 1.0
    embedding.weight.requires_grad_(True)
    embedding.weight.register_hook(lambda gradient: gradient * chosen)


def train(model: CLIP, scenes: Sequence[Scene], images: Tensor, options: argparse.Namespace) -> int:
    """Trains for `options.minutes`, learning rate flat and then linear to 0; returns the steps."""
    caption = prompt_caption if options.new_words_only else CAPTIONS[options.captions]
    decay = 0.0 if options.new_words_only else 0.05
    tokenizer = WordTokenizer(vocabulary(), CONTEXT)
    device, batch = torch.device(options.device), options.batch_size
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98))
    rng = random.Random(options.seed)
    begun, budget, step, order = time.monotonic(), 60 * options.minutes, 0, []
    target = torch.arange(batch, device=device)
    while (spent := (time.monotonic() - begun) / budget) < 1:
        rate = min(1, (step + 1) / 150) * (1 if spent < 0.4 else max(0.01, (1 - spent) / 0.6))
        for group in optimizer.param_groups:
            group["lr"] = options.lr * rate
        if len(order) < batch:
            order = torch.randperm(len(scenes)).tolist()
        rows = [order.pop() for _ in range(batch)]
        ids = tokenizer([caption(scenes[i], rng) for i in rows]).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=not options.float32):
            chosen = images[rows]
            shown = normalised(varied_scenes.varied(chosen)) if options.varied else pixels(chosen)
            image = model.encode_image(shown.to(device), normalize=True)
            text = model.encode_text(ids, normalize=True)
        logits = model.logit_scale.exp() * image.float() @ text.float().T
        loss = (cross_entropy(logits, target) + cross_entropy(logits.T, target)) / 2
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(max=math.log(100))
        step += 1
        if step % 200 == 0:
            seconds = time.monotonic() - begun
            print(f"step {step}  {seconds:.0f} s  loss {loss.item():.3f}", flush=True)
            save(model, options.out)
    return step


def save(model: CLIP, folder: Path) -> None:
    """Writes the folder that `OpenClip("local-dir:...")` loads: config, vocabulary, weights."""
    folder.mkdir(parents=True, exist_ok=True)
    visual: Any = model.visual
    config = {
        "model_cfg": model_config(visual.pool_type),
        "preprocess_cfg": {"size": [SIZE, SIZE], "mode": "RGB", "mean": MEAN, "std": STD,
                           "interpolation": "bicubic", "resize_mode": "squash"},
    }  # fmt: skip
    (folder / "open_clip_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "vocabulary.txt").write_text("\n".join(vocabulary()) + "\n")
    state = {name: value.contiguous().cpu() for name, value in model.state_dict().items()}
    with write_atomically(folder / "open_clip_model.safetensors") as temporary:
        save_file(state, temporary)


def measure(folder: Path, scenes: int = 1000, seed: int = HELD_OUT_SEED) -> tuple[float, float]:
    """Returns how often the right caption beats a random one, and its attribute-swapped twin.

    Held-out scenes have 2 or 3 plain objects; the caption names two of different colour and shape.
    """
    backbone = OpenClip(str(folder))
    rendered = SceneSeries(SPECS[3], seed).render(0, scenes, Canvas(SIZE))
    rng = random.Random(seed)
    images, right, twin = [], [], []
    for scene, picture in ((row.scene, row.image) for row in rendered):
        shown = {(o.color, o.shape) for o in scene.objects}
        chosen = []
        for a, b in itertools.permutations(scene.objects, 2):
            false = {(a.color, b.shape), (b.color, a.shape)} - shown  # what the twin says wrongly
            if a.color != b.color and a.shape != b.shape and false:
                chosen.append((a, b))
        if chosen:
            a, b = rng.choice(chosen)
            images.append(picture)
            right.append(both(query(a), query(b)))
            twin.append(both(f"{b.color} {a.shape}", f"{a.color} {b.shape}"))
    spec = FeatureSpec("pooled")
    image = _embedded(backbone.encode_image(pixels(torch.stack(images)), spec))
    captions = [_embedded(backbone.encode_text(c, spec)) for c in (right, twin)]
    true, swapped = ((image * c).sum(dim=-1) for c in captions)
    other = (image * captions[0].roll(1, 0)).sum(dim=-1)
    return (true > other).double().mean().item(), (true > swapped).double().mean().item()


def _measured(folder: Path) -> str:
    words, binding = measure(folder)
    return f"right against random {words:.3f}, against swapped twin {binding:.3f}"


def _embedded(features: Features) -> Tensor:
    assert isinstance(features, Pooled)
    return normalize(features.values, dim=-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write, or to measure")
    parser.add_argument("--init", type=Path, help="folder of weights to start from")
    parser.add_argument("--pool", choices=("avg", "tok"), default="avg", help="patches, or token")
    parser.add_argument("--captions", choices=CAPTIONS, default="web", help="unbound, or true")
    for name, text in (
        ("new-words-only", "train the words that --init lacks"),
        ("float32", "no bfloat16; faster on a CPU without AMX"),
        ("measure", "print both numbers, train nothing"),
        ("varied", "vary floors, sizes and light"),
    ):
        parser.add_argument(f"--{name}", action="store_true", help=text)
    for name, default in (
        *(("minutes", 60.0), ("scenes", 96_000), ("batch-size", 256), ("lr", 1.3e-3), ("seed", 0)),
        ("threads", torch.get_num_threads()),
        ("device", "cuda" if torch.cuda.is_available() else "cpu"),
    ):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    options = parser.parse_args()
    if options.new_words_only and not options.init:
        parser.error("expected --init FOLDER with --new-words-only")
    if options.measure:
        print(_measured(options.out))
        return
    forbidden = HELD_OUT if options.captions == "bound" else frozenset()
    seed = 1000 * (options.seed + 1)
    scenes, images = world(options.scenes, seed, options.threads, forbidden, options.varied)
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    model = CLIP(**model_config(options.pool)).to(options.device)
    if options.init:
        tokens = initialise(model, options.init)
        if options.new_words_only:
            only(model, tokens)
    steps = train(model, scenes, images, options)
    save(model, options.out)
    print(f"{steps} steps; {_measured(options.out)}")


if __name__ == "__main__":
    main()
