"""Put on PYTHONPATH, this stands where pynvml stands: a program and its children see a fake machine.

The file that FAKE_NVML_FILE names holds its state (`tests/fakes/nvml_with_limits.py`).
"""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent

# The fakes need the real module's exceptions and constants.
_elsewhere = [folder for folder in sys.path if Path(folder or ".").resolve() != _HERE]
_spec = importlib.machinery.PathFinder.find_spec("pynvml", _elsewhere)
assert _spec is not None
assert _spec.loader is not None
_real = importlib.util.module_from_spec(_spec)
_fake = sys.modules["pynvml"]
sys.modules["pynvml"] = _real
_spec.loader.exec_module(_real)
sys.path.append(str(_HERE.parent.parent.parent))

from tests.fakes.nvml_with_limits import NvmlWithLimits  # noqa: E402

sys.modules["pynvml"] = NvmlWithLimits.from_environment()  # type: ignore[assignment]
