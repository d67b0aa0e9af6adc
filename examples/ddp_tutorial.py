"""Train a small network with DistributedDataParallel: a plain PyTorch script, for torchrun.

    torchrun --nproc-per-node=2 examples/ddp_tutorial.py --epochs 5
    ./start.sh --num-gpus 2 examples/ddp_tutorial.py --epochs 5

It knows nothing of Airlock. Started again with the same --snapshot, it resumes where it stopped.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Waves(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Points on a line and the sine at each of them, the same in every process."""

    def __init__(self, num_points: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.rand(num_points, 1, generator=generator) * 6 - 3
        self.targets = self.inputs.sin()

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index], self.targets[index]


class Trainer:
    """One rank's part of the training."""

    def __init__(self, snapshot: Path, batch_size: int) -> None:
        self.rank = dist.get_rank()
        self.device = torch.device("cpu")
        if torch.cuda.is_available():
            self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)).to(self.device)
        self.optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
        self.snapshot, self.first_epoch = snapshot, 0
        if snapshot.exists():
            saved = torch.load(snapshot, map_location=self.device)
            network.load_state_dict(saved["network"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.first_epoch = saved["epochs"]
            print(f"rank {self.rank}: going on after epoch {self.first_epoch}")
        self.network = DistributedDataParallel(
            network, device_ids=[self.device.index] if self.device.type == "cuda" else None
        )
        data = Waves(1024)
        self.sampler: DistributedSampler[tuple[torch.Tensor, torch.Tensor]]
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, batch_size, sampler=self.sampler)

    def train(self, num_epochs: int) -> None:
        """Train up to `num_epochs`, including those of the snapshot."""
        for epoch in range(self.first_epoch, num_epochs):
            self.sampler.set_epoch(epoch)
            loss = self.run_epoch()
            print(f"rank {self.rank}: epoch {epoch + 1}, loss {loss:.4f}", flush=True)
            if self.rank == 0:
                self.save(epoch + 1)

    def run_epoch(self) -> float:
        """Process every batch of this rank once; return their mean loss."""
        total = 0.0
        for inputs, targets in self.loader:
            self.optimizer.zero_grad()
            outputs = self.network(inputs.to(self.device))
            loss = nn.functional.mse_loss(outputs, targets.to(self.device))
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total / len(self.loader)

    def save(self, num_epochs: int) -> None:
        """Replace the snapshot atomically, so that there is always a complete one."""
        saved = {
            "network": self.network.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epochs": num_epochs,
        }
        half_written = self.snapshot.with_suffix(".new")
        torch.save(saved, half_written)
        half_written.replace(self.snapshot)


def main() -> None:
    """Join the other ranks, train, leave."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32, help="samples a rank takes a step")
    parser.add_argument("--snapshot", type=Path, default=Path("snapshot.pt"))
    args = parser.parse_args()

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    Trainer(args.snapshot, args.batch_size).train(args.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
