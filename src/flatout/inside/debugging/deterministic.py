"""The same numbers in each run."""

from flatout.inside.debugging.switch import Switch


class Deterministic(Switch):
    """Deterministic algorithms everywhere; an operation that has none raises. Seeds are yours."""

    name = "deterministic"
    shows = "the same numbers in each run with the same seed; an operation that cannot is named"
    cost = "slower kernels for scatters, some convolutions and attention; nothing for most others"
    against = ("cudnn-autotune",)
    # What cuBLAS needs for it.
    environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # noqa: RUF012

    def turn_on(self) -> None:
        """Algorithms, and cuDNN's choice of them."""
        torch, cudnn = self.torch, self.torch.backends.cudnn
        self._mode = torch.get_deterministic_debug_mode()
        self._cudnn = cudnn.deterministic, cudnn.benchmark
        torch.use_deterministic_algorithms(True)
        cudnn.deterministic, cudnn.benchmark = True, False

    def turn_off(self) -> None:
        """As it was found."""
        self.torch.set_deterministic_debug_mode(self._mode)
        self.torch.backends.cudnn.deterministic, self.torch.backends.cudnn.benchmark = self._cudnn
