#!/bin/bash
# sbatch scripts/cluster/slurm.sh
#SBATCH --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 --cpus-per-task=8
#SBATCH --time=24:00:00 --requeue --signal=USR1@300
# Five minutes before the time limit the run writes a checkpoint and requeues itself. A job that
# starts again, for that reason or after a failure, resumes from the newest checkpoint.
run=runs/mine
last=$(ls -dt $run/{hpc_ckpt_*,checkpoints/last}.ckpt 2>/dev/null | head -n 1)
srun --kill-on-bad-exit=1 vlmtune fit --config run.yaml --trainer.devices 8 --trainer.num_nodes 2 \
  --trainer.default_root_dir $run ${last:+--ckpt_path "$last"}
