#!/bin/sh
# Two stages, one after the other: python is PYTHON, or the one on the path.
set -eu
cd "$(dirname "$0")"
export LEARNING_RATE=0.05
"${PYTHON:-python}" stages.py warm-up 3
LEARNING_RATE=0.01 "${PYTHON:-python}" stages.py main 5
echo "both done, rate $LEARNING_RATE"
