"""The same model behind LitServe: python -m benchmarks.serving_litserve PORT BATCH WAIT_S"""

import os
import sys
from typing import Any

import litserve
import torch

from benchmarks.serving_model import make


class Api(litserve.LitAPI):
    """As its documentation has it: decode, batch, predict, unbatch, encode."""

    def setup(self, device: str) -> None:
        """As flatout serve does: no gradients, and a core left for requests."""
        model, examples = make()
        cores = len(os.sched_getaffinity(0))
        if device == "cpu" and cores > 1:
            torch.set_num_threads(cores - 1)
        self.model, self.kind, self.place = model.eval().to(device), examples[0].dtype, device

    def decode_request(self, request):  # its annotation would be taken for a schema
        """One item."""
        return torch.tensor(next(iter(request["inputs"].values())), dtype=self.kind)

    def batch(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        """Several."""
        return torch.stack(inputs)

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """The model."""
        with torch.inference_mode():
            return self.model((x if x.dim() > 1 else x[None]).to(self.place)).cpu()

    def unbatch(self, output: torch.Tensor) -> list[torch.Tensor]:
        """One each."""
        return list(output)

    def encode_response(self, output: torch.Tensor) -> Any:
        """As JSON."""
        return {"outputs": {"output": output.tolist()}}


if __name__ == "__main__":
    # It would use `mcp` wherever that is installed, and knows other versions of it than we need.
    litserve.server._MCP_AVAILABLE = False  # noqa: SLF001
    port, most, wait_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    api = Api(max_batch_size=most, batch_timeout=wait_s)
    server = litserve.LitServer(api, accelerator="auto", devices=1, workers_per_device=1, timeout=60)
    server.run(port=port, host="127.0.0.1", generate_client_file=False, log_level="error", num_api_servers=1)
