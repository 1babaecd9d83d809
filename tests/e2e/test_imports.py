"""Starting costs little: neither `import flatout` nor `--help` loads what they do not need."""

import subprocess
import sys

HEAVY = ("torch", "rich", "msgspec", "psutil", "jinja2", "pynvml", "sqlite3", "asyncio", "numpy", "tomllib")


def loaded_after(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint('LOADED', *sorted(m.split('.')[0] for m in sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    line = next(line for line in run.stdout.splitlines() if line.startswith("LOADED"))
    return set(line.split()[1:])


def test_import_flatout_loads_nothing_heavy() -> None:
    loaded = loaded_after("import flatout")
    assert "flatout" in loaded
    assert not loaded & {*HEAVY, "click"}


def test_help_loads_click_and_nothing_heavy() -> None:
    loaded = loaded_after(
        "from flatout.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as ended:\n    assert not ended.code"
    )
    assert "click" in loaded
    assert not loaded & set(HEAVY)


def test_reading_a_report_never_loads_torch() -> None:
    loaded = loaded_after(
        "import flatout.report.doctor, flatout.report.limits, flatout.report.roofline, flatout.records.runs"
    )
    assert "torch" not in loaded


def test_the_doctors_own_process_never_loads_torch() -> None:
    loaded = loaded_after(
        "from flatout.cli.main import main\n"
        "try:\n    main(['doctor', '--json'])\nexcept SystemExit as ended:\n    assert ended.code in (0, 1)"
    )
    assert "msgspec" in loaded
    assert "torch" not in loaded
