"""The commands on a real GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch


def flatout(tmp_path: Path, *arguments: str, **environment: str) -> tuple[int, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "flatout", *arguments, "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "FLATOUT_CACHE_DIR": str(tmp_path), **environment},
        timeout=200,
    )
    return done.returncode, json.loads(done.stdout)


def test_doctor_proves_that_torch_computes_on_the_gpu(tmp_path: Path) -> None:
    code, document = flatout(tmp_path, "doctor")
    assert code in (0, 1)
    assert document["devices"][0]["vendor"] == "nvidia"
    computes = [check for check in document["checks"] if check["id"] == "torch.computes"]
    assert [check["status"] for check in computes] == ["ok"] * torch.cuda.device_count()
    statuses = {check["id"]: check["status"] for check in document["checks"]}
    assert statuses["torch.build"] == "ok"
    assert statuses["driver.answers"] == "ok"


def test_doctor_sees_a_hidden_gpu(tmp_path: Path) -> None:
    code, document = flatout(tmp_path, "doctor", CUDA_VISIBLE_DEVICES="7")
    assert code == 1
    failed = {check["id"] for check in document["checks"] if check["status"] == "fail"}
    assert {"gpu.visible", "torch.computes"} <= failed


@pytest.mark.timeout(600)
def test_limits_measures_every_part_of_the_card(tmp_path: Path) -> None:
    code, document = flatout(tmp_path, "limits", "--dtype", "bf16,fp32", "--no-cpu")
    assert code == 0
    measured, rated = document["measured"], document["rated"]
    for dtype in ("bf16", "fp32"):
        share = measured["matmul_flops_per_s"][dtype] / rated["dense_flops_per_s"][dtype]
        assert 0.4 < share < 1.0
    assert 0.5 < measured["memory_copy_bytes_per_s"] / rated["memory_bytes_per_s"] < 1.0
    assert measured["h2d_pinned_bytes_per_s"] > measured["h2d_pageable_bytes_per_s"]
    assert 1e-6 < measured["launch_s"] < 1e-4
    assert 0 < measured["graph_node_s"] < measured["launch_s"]
    assert measured["matmul_sustained_flops_per_s"]["bf16"] <= 1.05 * measured["matmul_flops_per_s"]["bf16"]
    assert document["clocks"]["samples"] > 5
    assert document["clocks"]["clock_compute_max_hz"] > 5e8


@pytest.mark.timeout(300)
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="a link needs two GPUs")
def test_limits_measures_the_link_between_gpus(tmp_path: Path) -> None:
    code, document = flatout(tmp_path, "limits", "--dtype", "bf16", "--no-cpu")
    assert code == 0
    link = document["link"]
    assert link["unknown"] == {}
    assert (link["backend"], link["ranks"]) == ("nccl", len(link["members"]))
    assert link["bus_bytes_per_s"] > 1e9
    assert 1e-6 < link["small_s"] < 1e-2
    assert len(link["pairs"]) == link["ranks"] * (link["ranks"] - 1)
