"""The model of `tigon train`, built from the Python face, has the losses of `tigon train`."""

import pathlib
import sys

import pytest
import torch
from model import AdamW, Model, learning_rate, take_step, windows

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "program"))
import program  # noqa: E402

STEPS = 51


def restore(metadata, tensors):
    """The model and its optimiser as the checkpoint holds them."""
    names = ("layers", "width", "heads", "experts", "top_k", "hidden", "vocabulary")
    model = Model(**{name: int(metadata[name]) for name in names})
    found = {
        name: torch.frombuffer(bytearray(raw), dtype=torch.float32).view(shape)
        for name, (shape, raw) in tensors.items()
    }
    model.load_state_dict({name: found[name] for name, _ in model.named_parameters()})
    optimiser = AdamW(model, int(metadata["step"]))
    for name in optimiser.parameters:
        optimiser.moments[name] = found["moment." + name]
        optimiser.variances[name] = found["variance." + name]
    return model, optimiser


def test_losses_of_the_program(tmp_path):
    data = program.write_text(tmp_path / "text.txt")
    arguments = ("train", "--data", data, "--preset", "tiny", "--steps", STEPS, "--skip-validation")
    program.succeeded(program.tigon(*arguments, "--out", tmp_path / "whole"))
    program.succeeded(program.tigon(*arguments, "--out", tmp_path / "first", "--stop-after", 1))
    expected = [line["loss"] for line in program.metrics(tmp_path / "whole")]

    metadata, tensors = program.read_checkpoint(tmp_path / "first")
    model, optimiser = restore(metadata, tensors)
    batch, length, seed, epoch, at = (int(metadata[n]) for n in ("batch", "seq", "seed", "epoch", "position"))
    source = windows(data.read_bytes(), length, seed, epoch, at)
    losses = []
    for step in range(1, STEPS):
        rate = learning_rate(step, STEPS, float(metadata["lr"]))
        losses.append(take_step(model, optimiser, [next(source) for _ in range(batch)], rate))
    assert expected[1] - expected[-1] > 0.5  # it learns
    assert losses == pytest.approx(expected[1:], abs=1e-4)
    print("largest difference", max(abs(a - b) for a, b in zip(losses, expected[1:])))
