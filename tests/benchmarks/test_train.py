"""The surface: what the scorer and the clock ask of it, in tiny configurations on a CPU."""

import importlib.util
import itertools
import math
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inner.edit import apply_constants, read_constants
from inner.history import Value
from inner.task import Task, load_task

GPT = Path(__file__).parents[2] / "benchmarks" / "gpt"
TINY: dict[str, Value] = {
    "DEPTH": 2,
    "ASPECT_RATIO": 16,
    "HEAD_DIM": 16,
    "TOTAL_BATCH_SIZE": 256,
    "DEVICE_BATCH_SIZE": 4,
}
NAMES = (
    "DEPTH ASPECT_RATIO HEAD_DIM WINDOW_PATTERN TOTAL_BATCH_SIZE DEVICE_BATCH_SIZE EMBEDDING_LR UNEMBEDDING_LR "
    "MATRIX_LR SCALAR_LR WEIGHT_DECAY ADAM_BETAS WARMUP_RATIO WARMDOWN_RATIO FINAL_LR_FRAC"
).split()

Surface = Callable[..., ModuleType]


@dataclass
class Spec:
    vocab_size: int = 64
    context: int = 32
    device: str = "cpu"
    seed: int = 0
    budget_seconds: float = 1.0
    rows: int = 2


class Clock:
    """A real clock: processor time of this process."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.start = seconds, time.process_time()
        self.points: list[tuple[int, float, int]] = []
        self.ends: list[float] = []  # of steps, in shares of the budget

    def progress(self) -> float:
        return (time.process_time() - self.start) / self.seconds

    def report(self, step: int, loss: float, tokens: int) -> None:
        self.ends.append(self.progress())
        self.points.append((step, loss, tokens))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def surface(tmp_path: Path) -> Iterator[Surface]:
    """Imports a text as the worker does: from a file of its own."""
    names: list[str] = []

    def load(text: str | None = None, **constants: Value) -> ModuleType:
        text = apply_constants(text or (GPT / "train.py").read_text(), constants if text else TINY | constants)
        name = f"surface_{tmp_path.name}_{len(names)}"
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        names.append(name)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in names:
        del sys.modules[name]


def repeating(length: int = 4096, vocab_size: int = 64) -> torch.Tensor:
    pattern = torch.randint(vocab_size, (50,), generator=torch.Generator().manual_seed(1))
    return pattern.repeat(math.ceil(length / 50))[:length].to(torch.uint16)


def shaken(state: Any) -> Any:
    """A model that uses all of its layers: they begin as the identity, which would hide what they see."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in state.model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return state


def some_tokens(rows: int = 2, length: int = 32, vocab_size: int = 64) -> torch.Tensor:
    return torch.randint(vocab_size, (rows, length), generator=torch.Generator().manual_seed(3))


def tasks() -> list[Task]:
    return [load_task(GPT / name) for name in ("task.toml", "mini.toml")]


def test_constants_are_literals_that_an_edit_can_set() -> None:
    found = read_constants((GPT / "train.py").read_text())
    assert set(found) == set(NAMES)
    assert found["TOTAL_BATCH_SIZE"] == 2**19


@pytest.mark.parametrize("name", ["task.toml", "mini.toml"])
def test_task_files_search_all_constants_but_the_size_of_the_model(name: str) -> None:
    assert set(load_task(GPT / name).constants) == set(NAMES) - {"DEPTH", "ASPECT_RATIO"}


def test_published_scale_has_about_fifty_million_parameters(surface: Surface) -> None:
    task = load_task(GPT / "task.toml")
    model = surface(task.surface).GPT(task.data.vocab_size, task.data.context, "meta")
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(50e6, rel=0.02)


def test_learns_what_repeats(surface: Surface) -> None:
    module, clock = surface(), Clock(1.5)
    state = module.build(Spec(budget_seconds=1.5))
    module.train(state, repeating(), clock)
    first, last = clock.points[0][1], clock.points[-1][1]
    assert first == pytest.approx(math.log(64), abs=0.1)
    assert last < first / 2


def test_training_leaves_the_corpus_alone(surface: Surface) -> None:
    module, tokens = surface(), repeating()
    before = tokens.clone()
    module.train(module.build(Spec()), tokens, Clock(0.05))
    assert torch.equal(tokens.long(), before.long())


def test_logits_have_the_shape_and_the_precision_that_the_scorer_expects(surface: Surface) -> None:
    module = surface()
    answer = module.logits(module.build(Spec()), some_tokens())
    assert answer.shape == (2, 32, 64)
    assert answer.dtype == torch.float32
    assert not answer.requires_grad


@pytest.mark.parametrize("pattern", ["SSSL", "L", "S"])
def test_no_token_sees_what_comes_after_it(surface: Surface, pattern: str) -> None:
    module = surface(WINDOW_PATTERN=pattern)
    state, tokens = shaken(module.build(Spec())), some_tokens()
    other = tokens.clone()
    other[:, 20:] = (other[:, 20:] + 1) % 64
    one, two = module.logits(state, tokens), module.logits(state, other)
    assert torch.allclose(one[:, :20], two[:, :20], atol=1e-5)
    assert not torch.allclose(one[:, 20:], two[:, 20:], atol=1e-2)


def test_answers_do_not_depend_on_earlier_questions(surface: Surface) -> None:
    module = surface()
    state, tokens = shaken(module.build(Spec())), some_tokens()
    first = module.logits(state, tokens)
    module.logits(state, tokens.flip(1))
    assert torch.equal(first, module.logits(state, tokens))


@pytest.mark.parametrize(("pattern", "reach"), [("S", 16), ("L", 32)])
def test_a_window_ends_what_a_layer_sees(surface: Surface, pattern: str, reach: int) -> None:
    module = surface(DEPTH=1, WINDOW_PATTERN=pattern)
    state, tokens = shaken(module.build(Spec())), some_tokens(1)
    other = tokens.clone()
    other[:, 0] = (other[:, 0] + 1) % 64
    moved = (module.logits(state, tokens) - module.logits(state, other)).abs().amax(dim=(0, 2))
    assert (moved[:reach] > 1e-5).all()
    assert (moved[reach:] == 0).all()


def test_positions_count_by_their_distance_only(surface: Surface) -> None:
    module = surface()
    model = module.build(Spec()).model
    generator = torch.Generator().manual_seed(2)
    q, k = (torch.randn(16, generator=generator).expand(1, 1, 32, 16) for _ in range(2))
    q, k = (module.rotate(x, model.cosine, model.sine)[0, 0] for x in (q, k))
    products = q @ k.T  # (T, T)
    assert torch.allclose(products[1:, 1:], products[:-1, :-1], atol=1e-4)
    assert len(products[:, 0].round(decimals=2).unique()) > 16


def test_the_size_of_queries_and_keys_means_nothing(surface: Surface) -> None:
    module = surface()
    state, tokens = shaken(module.build(Spec())), some_tokens()
    before = module.logits(state, tokens)
    with torch.no_grad():
        for attention in state.model.attention:
            attention.query.weight *= 10
            attention.key.weight *= 3
    assert torch.allclose(module.logits(state, tokens), before, atol=1e-3)


def test_every_window_pattern_of_the_task_files_runs(surface: Surface) -> None:
    for task, pattern in [(t, p) for t in tasks() for p in t.constants["WINDOW_PATTERN"].choices]:
        depth = read_constants(task.surface)["DEPTH"]
        module = surface(DEPTH=depth, WINDOW_PATTERN=pattern)
        answer = module.logits(shaken(module.build(Spec())), some_tokens())
        assert torch.isfinite(answer).all(), pattern


def test_patterns_of_mini_are_all_different(surface: Surface) -> None:
    task = load_task(GPT / "mini.toml")
    depth = int(str(read_constants(task.surface)["DEPTH"]))
    patterns = [str(choice) for choice in task.constants["WINDOW_PATTERN"].choices]
    assert len({tuple(itertools.islice(itertools.cycle(pattern), depth)) for pattern in patterns}) == len(patterns)


def corners() -> list[dict[str, Value]]:
    """Ends of mini's space: all low, all high, and mixtures; the largest batch once, since its step is long."""
    space = load_task(GPT / "mini.toml").constants
    found: list[dict[str, Value]] = []
    for number in range(6):
        rng = random.Random(number)
        corner: dict[str, Value] = {}
        for name, constant in space.items():
            end = number if number < 2 else rng.randrange(2)
            if constant.kind == "choice":
                corner[name] = constant.choices[-end]
            else:
                bound = constant.high if end else constant.low
                assert bound is not None
                corner[name] = constant.clip(bound)
        if number > 1:
            corner["TOTAL_BATCH_SIZE"] = 256
        found.append(corner)
    return found


@pytest.mark.parametrize("corner", corners(), ids=["low", "high", "mixed0", "mixed1", "mixed2", "mixed3"])
def test_corners_of_mini_train_and_answer(surface: Surface, corner: dict[str, Value]) -> None:
    task = load_task(GPT / "mini.toml")
    assert task.scoring is not None
    module = surface(task.surface, **corner)
    spec = Spec(task.data.vocab_size, task.data.context, rows=task.scoring.rows)
    state, clock = module.build(spec), Clock(0.4)
    module.train(state, repeating(20_000, spec.vocab_size), clock)
    assert all(math.isfinite(loss) for _, loss, _ in clock.points)
    assert torch.isfinite(module.logits(state, some_tokens(2, spec.context, spec.vocab_size))).all()


def test_the_seed_decides_the_parameters(surface: Surface) -> None:
    module = surface()

    def parameters(seed: int) -> torch.Tensor:
        model = module.build(Spec(seed=seed)).model
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    assert torch.equal(parameters(0), parameters(0))
    assert not torch.equal(parameters(0), parameters(1))


def test_warming_up_leaves_no_trace(surface: Surface) -> None:
    module = surface()
    warm = module.build(Spec())
    torch.manual_seed(0)
    cold = module.GPT(64, 32, "cpu")
    assert all(torch.equal(a, b) for a, b in zip(warm.model.parameters(), cold.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in warm.model.parameters())
    assert warm.optimizer.adamw.steps == 0
    assert all((momentum == 0).all() for _, momentum in warm.optimizer.muon.groups)


@pytest.mark.parametrize("betas", [(0.8, 0.95), (0.9, 0.99)])
def test_adamw_steps_as_that_of_torch(surface: Surface, betas: tuple[float, float]) -> None:
    torch.manual_seed(0)
    ours, theirs = (torch.nn.Parameter(torch.ones(5, 7)) for _ in range(2))
    optimizer = surface(ADAM_BETAS=betas).AdamW([(ours, 0.2)])
    reference = torch.optim.AdamW([theirs], lr=0.1, betas=betas, eps=1e-10, weight_decay=0.0)
    for _ in range(20):
        ours.grad = torch.randn(5, 7)
        theirs.grad = ours.grad.clone()
        optimizer.step(0.5)
        reference.step()
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_building_on_a_processor_does_not_wake_the_compiler(surface: Surface) -> None:
    code = "import runpy, sys, types; m = types.SimpleNamespace(**runpy.run_path(sys.argv[1])); "
    code += (
        "m.build(types.SimpleNamespace(vocab_size=64, context=32, device='cpu', seed=0, budget_seconds=1.0, rows=2))"
    )
    code += "; assert 'torch._dynamo' not in sys.modules"
    path = surface().__file__
    assert path is not None
    subprocess.run([sys.executable, "-c", code, path], check=True)


@pytest.mark.parametrize("seconds", [0.3, 1.0])
def test_training_ends_with_the_budget(surface: Surface, seconds: float) -> None:
    module = surface(TOTAL_BATCH_SIZE=512)
    state, clock = module.build(Spec(budget_seconds=seconds)), Clock(seconds)
    module.train(state, repeating(), clock)
    steps = len(clock.ends)
    assert [point[0] for point in clock.points] == list(range(1, steps + 1))
    assert clock.points[-1][2] == steps * 512
    assert clock.ends[-1] * (1 + 1 / steps) > 1  # there was no room for one more step,
    assert clock.ends[-2] * (1 + 1 / (steps - 1)) < 1.01  # there was for the last
    assert clock.progress() < 1.2


def test_the_learning_rate_comes_down_with_the_budget(surface: Surface) -> None:
    module = surface()
    shares = shares_of(module)
    module.train(module.build(Spec()), repeating(), Clock(0.5))
    assert shares[1] == 1.0
    assert shares[-1] < 4 / len(shares)


def test_the_learning_rate_comes_down_where_steps_do_not_divide_the_budget(
    surface: Surface, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = surface()
    shares, clock, take_step = shares_of(module), Clock(1.0), module.take_step
    state = module.build(Spec())
    spent = 0.0

    def step_of_a_known_price(*arguments: Any) -> float:
        nonlocal spent
        spent += 0.3
        return float(take_step(*arguments))

    monkeypatch.setattr(module, "take_step", step_of_a_known_price)
    monkeypatch.setattr(clock, "progress", lambda: spent)
    module.train(state, repeating(), clock)
    # Three steps, as seen from their middles: at 1/6 by guess, then 3/6 and 5/6 of the 0.9 that they take.
    assert shares[1:] == pytest.approx([1, 1, 1 / 3])


def shares_of(module: ModuleType) -> list[float]:
    """The shares of the peak learning rates, step by step, as they are used; warming up is the first."""
    shares: list[float] = []
    step = module.Optimizer.step

    def noted(optimizer: Any, share: float) -> None:
        shares.append(share)
        step(optimizer, share)

    module.Optimizer.step = noted
    return shares


def test_the_schedule_is_a_trapezoid(surface: Surface) -> None:
    schedule = surface(WARMUP_RATIO=0.2, WARMDOWN_RATIO=0.5, FINAL_LR_FRAC=0.1).schedule
    found = [schedule(progress) for progress in (0.0, 0.1, 0.2, 0.5, 0.75, 1.0, 1.1)]
    assert found == pytest.approx([0, 0.5, 1, 1, 0.55, 0.1, 0.1])


def test_a_batch_smaller_than_one_row_is_one_row(surface: Surface) -> None:
    assert surface(TOTAL_BATCH_SIZE=1, DEVICE_BATCH_SIZE=16).batch_shape(32) == (1, 1)


@given(total=st.integers(1, 10**6), device=st.integers(1, 512), context=st.integers(1, 4096))
def test_a_step_has_all_its_tokens_and_hardly_more(total: int, device: int, context: int) -> None:
    from benchmarks.gpt import train

    before = train.TOTAL_BATCH_SIZE, train.DEVICE_BATCH_SIZE
    try:
        train.TOTAL_BATCH_SIZE, train.DEVICE_BATCH_SIZE = total, device
        pieces, rows = train.batch_shape(context)
    finally:
        train.TOTAL_BATCH_SIZE, train.DEVICE_BATCH_SIZE = before
    assert 1 <= rows <= device
    assert total <= pieces * rows * context < total + (pieces + 1) * context


def test_an_epoch_has_each_row_once(surface: Surface) -> None:
    tokens = (torch.arange(10 * 8 + 1) + 60_000).to(torch.uint16)
    data = surface().batches(tokens, 5, 8, "cpu", seed=0)
    blocks = [next(data) for _ in range(4)]
    assert all(torch.equal(inputs + 1, targets) for inputs, targets in blocks)
    starts = torch.cat([inputs[:, 0] for inputs, _ in blocks]).tolist()
    everything = list(range(60_000, 60_080, 8))
    assert sorted(starts[:10]) == sorted(starts[10:]) == everything
    assert starts[:10] != starts[10:]


def test_a_corpus_shorter_than_a_row_is_named(surface: Surface) -> None:
    with pytest.raises(ValueError, match="8 training tokens do not fill a row of 8"):
        next(surface().batches(torch.zeros(8, dtype=torch.uint16), 1, 8, "cpu", seed=0))


@pytest.mark.parametrize("shape", [(3, 32, 32), (2, 64, 16), (2, 16, 64)])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_muon_steps_are_orthogonal(surface: Surface, shape: tuple[int, int, int], size: float) -> None:
    matrices = size * torch.randn(shape, generator=torch.Generator().manual_seed(5))
    values = torch.linalg.svdvals(surface().orthogonalise(matrices))
    assert values.shape == (shape[0], min(shape[1:]))
    assert ((values > 0.6) & (values < 1.3)).all()


def test_each_parameter_is_trained(surface: Surface) -> None:
    module = surface()
    state = module.build(Spec())
    before = {name: parameter.detach().clone() for name, parameter in state.model.named_parameters()}
    module.train(state, repeating(), Clock(0.1))
    assert [name for name, parameter in state.model.named_parameters() if torch.equal(parameter, before[name])] == []


def test_activations_in_half_precision_mean_the_same(surface: Surface) -> None:
    """What a GPU does, as far as a CPU can: fp32 parameters, bf16 activations."""
    module = surface(WINDOW_PATTERN="SL")
    model, tokens = shaken(module.build(Spec())).model, some_tokens()
    exact = model(tokens)
    model.dtype, model.cosine, model.sine = torch.bfloat16, model.cosine.bfloat16(), model.sine.bfloat16()
    rounded = model(tokens)
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).abs().max() < 0.1 * exact.abs().max()
    model(tokens, tokens).backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())


@pytest.mark.parametrize(
    ("constant", "value"),
    [("HEAD_DIM", 15), ("WINDOW_PATTERN", "SX"), ("WINDOW_PATTERN", ""), ("DEPTH", 0), ("TOTAL_BATCH_SIZE", 0)],
)
def test_a_constant_that_no_model_can_have_is_named(surface: Surface, constant: str, value: Value) -> None:
    with pytest.raises(ValueError, match=constant):
        surface(**{constant: value}).build(Spec())


def test_a_loss_that_is_no_number_ends_the_run(surface: Surface) -> None:
    module = surface()
    state = module.build(Spec())
    with torch.no_grad():
        state.model.x0.fill_(math.nan)
    with pytest.raises(FloatingPointError, match="after step 1"):
        module.train(state, repeating(), Clock(0.1))
