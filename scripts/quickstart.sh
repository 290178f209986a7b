#!/bin/sh
# The whole of vlmtune on a laptop CPU: sh scripts/quickstart.sh
# SEED=1 sh scripts/quickstart.sh trains with another seed. World, shards and features are made once
# and used again by later calls; a training goes on where its last checkpoint is, finished or not.
set -eu
cd "$(dirname "$0")/.."
seed=${SEED:-0}
out=runs/quickstart
run=$out/seed-$seed
start=$(date +%s)
resumed() { [ ! -f "$1/checkpoints/last.ckpt" ] || echo "--ckpt_path $1/checkpoints/last.ckpt"; }
step() { printf '[%4d s] %s\n' "$(($(date +%s) - start))" "$1"; }

step "rendering the world"
vlmtune build scenes --config configs/experiments/quickstart/world.yaml --out $out/world
step "writing Cola's training queries"
vlmtune build cola --config configs/experiments/quickstart/queries.yaml --out $out/shards
step "measuring the frozen CLIP, zero-shot"
vlmtune evaluate --model checkpoints/scenes-clip --benchmarks configs/experiments/quickstart/benchmarks.yaml \
  --name zero-shot --store $out/features --blind $out/shards --out $out/zero-shot
step "training the linear probe"
# shellcheck disable=SC2046 # two words or none
vlmtune fit --config configs/experiments/quickstart/linear_probe.yaml $(resumed "$run/linear-probe") \
  --trainer.default_root_dir "$run/linear-probe" --seed_everything "$seed" --model.seed "$seed" --data.seed "$seed"
step "training the MM-Adapter"
# shellcheck disable=SC2046
vlmtune fit --config configs/experiments/quickstart/mm_adapter.yaml $(resumed "$run/mm-adapter") \
  --trainer.default_root_dir "$run/mm-adapter" --seed_everything "$seed" --model.seed "$seed" --data.seed "$seed"
step "exporting the MM-Adapter"
vlmtune export "$run/mm-adapter/checkpoints/last.ckpt" --report "$run/mm-adapter" \
  --out $out/export --overwrite
step "scoring a picture of the first caption against both"
vlmtune score $out/export $out/world/images/cola/cola_unseen_000000.png \
  --text "a red cube and a blue sphere" --text "a blue cube and a red sphere"
step "measuring the frozen CLIP on all other benchmarks"
vlmtune evaluate --model checkpoints/scenes-clip --benchmarks configs/experiments/quickstart/suite.yaml \
  --name zero-shot --store $out/features --blind $out/shards --out $out/suite/zero-shot
step "measuring the MM-Adapter on them"
vlmtune evaluate --model $out/export --benchmarks configs/experiments/quickstart/suite.yaml \
  --name MM-Adapter --store $out/features --out $out/suite/mm-adapter
step "putting these two and the blind scorers side by side"
vlmtune report $out/suite/zero-shot $out/suite/mm-adapter --out $out/suite/report
step "putting the three runs on Cola side by side"
vlmtune report $out/zero-shot "$run/linear-probe" "$run/mm-adapter" --out $out/report
step "done: open $out/report/report.html"
