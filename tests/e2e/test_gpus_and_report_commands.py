"""`flatout gpus` and `flatout report` as a user meets them."""

import json
from pathlib import Path

from flatout.records.runs import RunFolder
from tests.e2e.conftest import Run


def test_gpus_shows_rated_peaks_memory_and_price(flatout: Run) -> None:
    done = flatout("gpus", "h200", "--json")
    document = json.loads(done.stdout)
    assert document["schema"] == "flatout.gpus/1"
    row = next(row for row in document["gpus"] if row["gpu"]["id"] == "h200-sxm")
    assert row["gpu"]["memory_bytes"] == 141_000_000_000
    assert row["gpu"]["source"]
    assert row["price"]["usd_per_gpu_hour"] > 0
    assert document["as_of"]
    assert "h200-sxm" in flatout("gpus", "h200").stdout


def test_gpus_can_be_narrowed(flatout: Run) -> None:
    rows = json.loads(flatout("gpus", "--min-memory", "100", "--vendor", "amd", "--json").stdout)["gpus"]
    assert rows
    assert all(row["gpu"]["vendor"] == "amd" and row["gpu"]["memory_bytes"] >= 1e11 for row in rows)


def test_the_price_table_can_be_replaced(flatout: Run, tmp_path: Path) -> None:
    template = flatout("gpus", "--price-template").stdout
    mine = tmp_path / "mine.toml"
    mine.write_text(
        'as_of = 2026-11-01\n[[price]]\ngpu = "rtx4090"\nusd_per_gpu_hour = 0.11\nprovider = "us"\n'
    )
    assert 'currency = "USD"' in template
    by_option = json.loads(flatout("gpus", "--priced", "--prices", str(mine), "--json").stdout)
    assert [row["gpu"]["id"] for row in by_option["gpus"]] == ["rtx4090"]
    by_variable = json.loads(flatout("gpus", "--priced", "--json", FLATOUT_PRICES=str(mine)).stdout)
    assert by_variable == by_option


def test_a_wrong_key_in_the_price_table_is_named_with_its_line_and_the_file_is_left_alone(
    flatout: Run, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.toml"
    text = 'as_of = 2026-11-01\n[[price]]\ngpu = "rtx4090"\nusd_per_gpu_huor = 0.11\nprovider = "us"\n'
    mine.write_text(text)
    done = flatout("gpus", "--prices", str(mine))
    assert done.returncode == 2
    assert "line 4" in done.stderr
    assert "usd_per_gpu_huor" in done.stderr
    assert "usd_per_gpu_hour" in done.stderr
    assert mine.read_text() == text


def test_a_doctor_report_is_saved_listed_and_read_on_another_machine(flatout: Run, tmp_path: Path) -> None:
    saved = flatout("doctor", "--save")
    assert saved.returncode == 0, saved.stderr
    listed = flatout("report")
    assert "doctor" in listed.stdout
    [folder] = (tmp_path / ".flatout" / "runs").iterdir()
    elsewhere = tmp_path / "elsewhere"
    folder.rename(elsewhere)
    shown = flatout("report", str(elsewhere))
    assert "env.debug" in shown.stdout
    document = json.loads(flatout("report", str(elsewhere), "--json").stdout)
    assert document["run"]["command"] == "doctor"
    assert document["documents"]["doctor"]["schema"] == "flatout.doctor/1"


def test_a_run_that_was_killed_is_read_as_that(flatout: Run, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / ".flatout", command="run", arguments=("train.py",))
    name = folder.manifest.id
    assert flatout("report", name).stdout.splitlines()[0].endswith(" died")
    assert json.loads(flatout("report", name, "--json").stdout)["run"]["status"] == "died"
    with folder.writing():
        assert json.loads(flatout("report", name, "--json").stdout)["run"]["status"] == "running"


def test_listing_where_there_is_nothing_leaves_nothing_behind(flatout: Run, tmp_path: Path) -> None:
    done = flatout("report")
    assert done.returncode == 0
    assert "no saved runs" in done.stdout
    assert not (tmp_path / ".flatout").exists()


def test_a_run_of_a_newer_version_is_refused_and_not_rewritten(flatout: Run, tmp_path: Path) -> None:
    flatout("doctor", "--save")
    [manifest] = (tmp_path / ".flatout" / "runs").glob("*/run.json")
    newer = manifest.read_text().replace("flatout.run-folder/1", "flatout.run-folder/7")
    manifest.write_text(newer)
    done = flatout("report", "latest")
    assert done.returncode == 3
    assert "flatout.run-folder/7" in done.stderr
    assert manifest.read_text() == newer
