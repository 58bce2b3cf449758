"""The training of the tutorial: a recurrent network that learns far worse than it should, and the same one fixed.

The input is five sequences of numbers between -1 and 1, the answer whether each of them has a positive sum. In the
run "bugged" an activation follows every layer, also the last one of each of the three subnets: their outputs fall a
hundred times more slowly than they rise. The run "fixed" omits that activation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from layerscope.api import watch
from layerscope.capture.core.recorder import Recorder

STEPS = 1200  # training steps of each run
SEQUENCES, WIDTH, MEMORY, BATCH = 5, 64, 32, 64
LONGEST = 10  # numbers in a sequence, in training
LONGER = (15, 20)  # in evaluation only: does the network generalize to longer sequences?
EVALUATE, NOTE = 50, 200  # training steps between two evaluations, and between two notes
SLOPE = 0.01
NEAR_ZERO = 0.25  # sums closer to zero than this are hard to classify
TRIALS = {"bugged": True, "fixed": False}


class Subnet(nn.Sequential):
    """Two layers; with the bug, an activation also follows the last one."""

    def __init__(self, inputs: int, outputs: int, *, bugged: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, WIDTH), nn.LeakyReLU(SLOPE), nn.Linear(WIDTH, outputs))
        self.last = nn.LeakyReLU(SLOPE) if bugged else nn.Identity()


class Network(nn.Module):
    """Reads one number of each sequence per iteration into a memory, and answers from the memory."""

    def __init__(self, *, bugged: bool) -> None:
        super().__init__()
        self.subnet_pre = Subnet(SEQUENCES, MEMORY, bugged=bugged)
        self.subnet_main = Subnet(2 * MEMORY, MEMORY, bugged=bugged)
        self.subnet_out = Subnet(MEMORY, SEQUENCES, bugged=bugged)

    def read(self, numbers: Tensor, memory: Tensor, run: Recorder) -> Tensor:
        """The memory after one more number of each sequence."""
        seen = run.record("seen", self.subnet_pre(numbers))
        memory = self.subnet_main(torch.cat((seen, memory), dim=1))
        return run.record("memory", memory)

    def answer(self, memory: Tensor, run: Recorder) -> Tensor:
        """For each sequence, the probability that its sum is positive."""
        last_layer = run.record("last_layer", self.subnet_out.layers(memory))
        before_sigmoid = run.record("before_sigmoid", self.subnet_out.last(last_layer))
        return run.record("output", torch.sigmoid(before_sigmoid))


def batch(length: int, generator: torch.Generator) -> Tensor:
    """Sequences of one length: sample, position in the sequence, sequence."""
    return 2 * torch.rand(BATCH, length, SEQUENCES, generator=generator) - 1


def loss_and_accuracy(network: Network, sequences: Tensor, run: Recorder) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of one batch, with every intermediate tensor named, and the share of right answers."""
    memory = run.record("memory", torch.zeros(BATCH, MEMORY), initial=True)
    sums = sequences.cumsum(dim=1)
    total = sums[:, -1]
    for position, numbers in enumerate(sequences.unbind(dim=1)):
        with run.iteration():
            memory = network.read(run.record("input", numbers, type="input"), memory, run)
            run.record("helper_partial_sums", sums[:, position], role="so far")
            run.record("helper_partial_sums", total - sums[:, position], role="to come")
            if position == sequences.shape[1] - 1:
                output = network.answer(memory, run)
                target = run.record("target", (total > 0).float(), type="target")
                losses = nn.functional.binary_cross_entropy(output, target, reduction="none")
                loss = run.record("loss", run.record("loss_per_sample", losses).mean(), type="loss")
    right, hard = (output > 0.5) == (total > 0), total.abs() < NEAR_ZERO
    accuracy = {"accuracy/sum near 0": right[hard], "accuracy/other": right[~hard], "accuracy/all": right}
    return loss, {name: each.float().mean() for name, each in accuracy.items()}


def train_trial(name: str, to: Path, steps: int, track: Callable[[range, str], Iterable[int]]) -> None:
    """Train and record one of the two runs; both use the same sequences."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    network = Network(bugged=TRIALS[name])
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.05, total_iters=steps)
    with watch(network, optimizer, to=to / name, every={"*": EVALUATE}) as run:
        run.note(f"Run {name!r}: {steps} training steps with 1 to {LONGEST} iterations; evaluated with {LONGER}.")
        for step in track(range(steps), f"run {name}"):
            length = int(torch.randint(1, LONGEST + 1, (), generator=generator))
            run.begin(type=f"{length:02}_iterations")
            loss, accuracy = loss_and_accuracy(network, batch(length, generator), run)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            falling.step()
            run.step(loss=loss, **accuracy)
            if (step + 1) % EVALUATE == 0:
                for longer in LONGER:
                    loss, accuracy = evaluate(network, longer, run)
                if (step + 1) % NOTE == 0:
                    run.note(
                        f"{step + 1} training steps: of sequences of {longer}, {accuracy['accuracy/all']:.0%} right."
                    )


@torch.no_grad()
def evaluate(network: Network, length: int, run: Recorder) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss on fixed sequences that are longer than those of the training, as a step of its own type."""
    run.begin(type=f"{length:02}_iterations")
    network.eval()
    loss, accuracy = loss_and_accuracy(network, batch(length, torch.Generator().manual_seed(length)), run)
    network.train()
    run.step(loss=loss, **accuracy)
    return loss, accuracy


def train(to: Path, steps: int, track: Callable[[range, str], Iterable[int]]) -> None:
    """Train and record both runs. `track` shows the progress."""
    torch.set_num_threads(1)  # the network is too small for more threads, and the page needs the other core
    for name in TRIALS:
        train_trial(name, to, steps, track)
