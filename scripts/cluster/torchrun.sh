#!/usr/bin/env bash
# bash torchrun.sh --config run.yaml                              on one node
# NODES=2 RANK=0 MASTER=node0 bash torchrun.sh --config run.yaml  on node0; with RANK=1 on the other
# The same command, started again after a failure, resumes.
run=runs/mine
last=$(ls -dt $run/{last-on-signal,checkpoints/last}.ckpt 2>/dev/null | head -n 1)
exec torchrun --nnodes "${NODES:-1}" --node-rank "${RANK:-0}" --nproc-per-node "${GPUS:-8}" \
  --master-addr "${MASTER:-localhost}" --master-port 29500 \
  -m vlmtune fit "$@" --trainer.devices "${GPUS:-8}" --trainer.num_nodes "${NODES:-1}" \
  --trainer.default_root_dir $run ${last:+--ckpt_path "$last"}
