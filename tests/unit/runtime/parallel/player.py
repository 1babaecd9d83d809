"""What a rank runs: the scenes, in their order. Two ranks play all of them, four those of every strategy."""

import os
import sys
from pathlib import Path

import torch.distributed as dist

from tests.unit.runtime.parallel import test_parallel_data_and_saving as data
from tests.unit.runtime.parallel import test_parallel_strategies as strategies
from tests.unit.runtime.parallel.trainings import play

if __name__ == "__main__":
    all_of_them = (*strategies.SCENES, *data.SCENES)
    play(all_of_them if os.environ["WORLD_SIZE"] == "2" else strategies.CORE, Path(sys.argv[1]))
    dist.destroy_process_group()
