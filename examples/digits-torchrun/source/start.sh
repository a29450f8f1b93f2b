#!/bin/sh
# A starter of one's own: `train` runs this once on every host, where WORLD_SIZE and RANK count hosts, and hands it the hyperparameters.
exec torchrun --nnodes "$WORLD_SIZE" --node-rank "$RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
    --nproc-per-node "${RANKS_PER_HOST:-2}" train.py "$@"
