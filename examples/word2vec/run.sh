#!/bin/sh
# Trains the example on the hosts of conf.py, beside this file: sh run.sh [OPTIONS]
# prepare.py makes the workspace; PATH_TO_LOCAL_WORKSPACE may be another one. What is given below is changed here:
# an option counts once.
# --install: the hosts need Python 3.11 or later, but neither pslaunch nor numpy.
cd "$(dirname "$0")" || exit
PATH_TO_LOCAL_WORKSPACE=${PATH_TO_LOCAL_WORKSPACE:-ws}
if [ ! -d "$PATH_TO_LOCAL_WORKSPACE" ]; then
  echo "run.sh: $PATH_TO_LOCAL_WORKSPACE is not there (seen from $PWD); python $PWD/prepare.py makes ws" >&2
  exit 2
fi

exec pslaunch fabric \
  --job_dispatch_package="${PATH_TO_LOCAL_WORKSPACE}" \
  --install \
  --dot_period=10 \
  --ports_num_for_sparse=1 \
  --log_period=50 \
  --num_passes=5 \
  --trainer_count=2 \
  --saving_period=1 \
  --local=0 \
  --save_dir=./output \
  --use_gpu=0 \
  "$@"
