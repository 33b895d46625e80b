"""llama.cpp's server out of the package xllamacpp: llama_server.py MODEL PORT SLOTS, until it is killed."""

from __future__ import annotations

import signal
import sys

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path, params.port, params.n_parallel = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
params.n_ctx = 1024 * params.n_parallel
params.cpuparams.n_threads = 1
server = xllamacpp.Server(params)
signal.pause()
