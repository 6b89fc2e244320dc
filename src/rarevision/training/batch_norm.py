"""Batch norm over the frames of all processes, on any device: torch's own SyncBatchNorm refuses CPUs."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce


class SharedBatchNorm1d(nn.BatchNorm1d):
    """N processes with equal parts of a batch see the statistics that one process would see on the whole of it."""

    def forward(self, x: Tensor) -> Tensor:
        """x: float32 [B, D], the same B on every process."""
        if not self.training:
            return super().forward(x)
        n = len(x) * dist.get_world_size()
        mean = all_reduce(x.sum(0)) / n  # its gradient is summed over the processes as well
        centred = x - mean
        var = all_reduce(centred.square().sum(0)) / n
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var * n / (n - 1), self.momentum)
        return centred * (var + self.eps).rsqrt() * self.weight + self.bias


def share(model: nn.Module) -> None:
    """Make every BatchNorm1d of a model a shared one, in place; parameters and buffers stay."""
    for part in model.modules():
        if type(part) is nn.BatchNorm1d:
            part.__class__ = SharedBatchNorm1d
