"""What others take to watch the same trainings, as JSON; run by the watch benchmark in an environment that has them.

python watch_peers.py REPEAT

Each peer is called as its documentation says, at every step, with nothing left out: in a process of its own, where its
steps take turns with the plain ones of a second training. Of the processor's time, that of other processes is not seen.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from watch_subjects import STEPS, SUBJECTS, Training, Watched, against_plain  # type: ignore[import-not-found]

GRAPHVIZ = str(Path(sys.executable).parent)  # a `dot` of the environment is used


def tensorboard(training: Training) -> Watched:
    from torch.utils.tensorboard import SummaryWriter

    writer, outputs, count = SummaryWriter("tensorboard"), dict[str, Tensor](), 0
    for name, module in training.model.named_modules():
        module.register_forward_hook(
            lambda _, __, output, name=name: (
                outputs.__setitem__(name, output.detach()) if isinstance(output, Tensor) else None
            )
        )

    def step() -> None:
        nonlocal count
        count += 1
        training.step()
        for name, parameter in training.model.named_parameters():
            writer.add_histogram(f"weights/{name}", parameter, count)
            if parameter.grad is not None:
                writer.add_histogram(f"gradients/{name}", parameter.grad, count)
        for name, output in outputs.items():
            writer.add_histogram(f"outputs/{name}", output, count)

    return Watched(step, writer.flush)


def wandb(training: Training) -> Watched:
    import wandb  # type: ignore[import-not-found]

    run = wandb.init(mode="offline", settings=wandb.Settings(silent=True))
    run.watch(training.model, log="all", log_freq=1)
    return Watched(lambda: run.log({"loss": float(training.step().detach())}))


def torchexplorer(training: Training) -> Watched:
    import torchexplorer  # type: ignore[import-not-found]

    torchexplorer.watch(training.model, log_freq=1, backend="none")
    return Watched(training.step)


def tandv(training: Training) -> Watched:
    """Its numbers of its tensors, by torch operations as it has them, nothing stored: it is in no package index."""
    stash: list[object] = []

    def take(tensor: Tensor | None) -> None:
        if tensor is not None and tensor.is_floating_point():
            stash.append(tandv_numbers(tensor.detach()))

    for module in training.model.modules():
        module.register_forward_hook(lambda _, __, output: take(output) if isinstance(output, Tensor) else None)
        module.register_full_backward_pre_hook(lambda _, gradients: take(gradients[0]))

    def step() -> None:
        stash.clear()
        training.step()
        for parameter in training.model.parameters():
            take(parameter)
            take(parameter.grad)
            for key, state in training.optimizer.state.get(parameter, {}).items():
                if key != "step":
                    take(state)

    return Watched(step)


def tandv_numbers(tensor: Tensor) -> tuple[list[float], list[float]]:
    """Eight numbers, each fetched on its own, and a histogram of the exponents from -16 to 16."""
    size, rms = tensor.abs(), tensor.pow(2).mean().pow(1 / 2)
    scaled = [tensor.div(rms).pow_(power).mean().pow(1 / power).mul(rms) for power in (4, 8)]
    numbers = [tensor.mean(), tensor.std(correction=0), size.mean(), size.max(), size.min(), rms, *scaled]
    exponents = torch.frexp(tensor).exponent.flatten().clamp(-17, 17)
    counts = torch.histc(exponents.to(tensor.dtype), bins=35, min=-17, max=17)
    return [number.item() for number in numbers], counts.int().tolist()


PEERS: dict[str, Callable[[Training], Watched]] = {
    "TensorBoard's add_histogram of outputs, weights and gradients": tensorboard,
    "wandb.watch(log='all'), which has no outputs": wandb,
    "TorchExplorer, of 1,000 elements of each tensor, without its page": torchexplorer,
    "tandv's statistics, not stored": tandv,
}


def measured(peer: str, subject: str, repeat: int) -> dict[str, float | str]:
    """Ratios to the plain step, or why there are none."""
    plain, training = SUBJECTS[subject](), SUBJECTS[subject]()
    steps = min(STEPS[subject], 20)
    try:
        watched = PEERS[peer](training)
        watched.step()
        found = against_plain(plain.step, lambda: nullcontext(watched), repeat, steps)
    except Exception as error:  # noqa: BLE001  whatever keeps a peer from watching is what there is to say of it
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    return {"cpu": found.cpu, "wall": found.wall}


def in_a_process(peer: str, subject: str, repeat: int) -> dict[str, float | str]:
    command = [sys.executable, __file__, str(repeat), peer, subject]
    environment = os.environ | {"PATH": f"{GRAPHVIZ}{os.pathsep}{os.environ.get('PATH', '')}"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return {"error": f"its process ended with {done.returncode}"}
    found: dict[str, float | str] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(repeat: str, peer: str | None = None, subject: str | None = None) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if peer is not None and subject is not None:
        print(json.dumps(measured(peer, subject, int(repeat))))
        return
    found = {peer: {subject: in_a_process(peer, subject, int(repeat)) for subject in SUBJECTS} for peer in PEERS}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
