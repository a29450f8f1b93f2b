#!/bin/sh
# Open MPI starts every rank through this script (its "fork agent"), on every host: it gives the rank the variables
# that torch.distributed reads, and takes back values of the host it runs on that mpirun -x has overwritten with the
# first host's. It does nothing else: no shell stays behind, exec keeps the process that Open MPI watches.
export RANK="$OMPI_COMM_WORLD_RANK" WORLD_SIZE="$OMPI_COMM_WORLD_SIZE"
export LOCAL_RANK="$OMPI_COMM_WORLD_LOCAL_RANK" LOCAL_WORLD_SIZE="$OMPI_COMM_WORLD_LOCAL_SIZE"
# shellcheck source=/dev/null
[ -r "$SHOAL_RANK_ENV" ] && . "$SHOAL_RANK_ENV"
exec "$@"
