#!/usr/bin/env bash
# From frames to a validated submission. Reads as the table of contents: one block, one command per stage.
#
#   ./run_all.sh         the demo, from nothing to submissions/demo.json
#   ./run_all.sh test    the tests
#
# Settings (environment):
#   CONFIG=configs/galar.toml   what to run                      (default configs/demo.toml)
#   DATA_ROOT=, TEST_ROOT=      training and test frames         (default: the config's)
#   RUN_DIR=                    where everything of a run lies   (default runs/<config name>)
#   SET="train.epochs=1 ..."    single config values, by section.key=value
#   FROM=04  ONLY=05            start at a stage; run a single stage
#   FORCE=1                     run stages even if nothing changed
set -euo pipefail

absolute() { case "${1:-}" in "" | /*) echo "${1:-}" ;; *) echo "$PWD/$1" ;; esac; }
CONFIG=$(absolute "${CONFIG:-}") DATA_ROOT=$(absolute "${DATA_ROOT:-}")
TEST_ROOT=$(absolute "${TEST_ROOT:-}") RUN_DIR=$(absolute "${RUN_DIR:-}")
cd "$(dirname "${BASH_SOURCE[0]}")"
export CONFIG=${CONFIG:-$PWD/configs/demo.toml} DATA_ROOT TEST_ROOT RUN_DIR
export SET=${SET:-} FROM=${FROM:-} ONLY=${ONLY:-} FORCE=${FORCE:-}
export NO_ALBUMENTATIONS_UPDATE=1 TOKENIZERS_PARALLELISM=false
unset MPLBACKEND # a value from the shell would keep figures out of the notebooks

# Set-up: the active environment if it meets requirements.txt, else .venv (made and filled when needed)
source .ci/environment.sh

# Tests
if [ "${1:-}" = test ]; then exec python -m pytest "${@:2}"; fi
if [ $# -gt 0 ]; then echo "run_all.sh: unknown argument '$1'; usage: ./run_all.sh [test]" >&2; exit 2; fi

stage() { python -m rarevision stage "$@"; }

# 00  Demo data set and a tiny twin of BiomedCLIP, where the config asks for them
stage 00_demo

# 01  What is in the data: coverage of frames and labels, imbalance, splits by study
stage 01_eda_imbalance

# 02  The model: pretrained weights, differential attention, both heads, text embeddings
stage 02_model_differential_attention

# 03  Training by fold; out-of-fold and test scores
stage 03_training

# 04  Thresholds per label, fitted out of fold
stage 04_threshold_tuning

# 05  Scores to events; the submission, validated
stage 05_temporal_decoding

# What came out
python -m rarevision summary
