"""A small GPT and the run that trains it: the one file that an experiment edits.

The laboratory imports this file in a sandbox and calls three functions, in this order:

    build(spec)                  makes the model and warms it up on random tokens; no clock runs and there is no data
    train(state, tokens, clock)  gets the training tokens, and has to be done when the budget is spent
    logits(state, tokens)        answers the scorer, who holds the validation text and computes bits per byte himself

Everything in between may be changed. `bilevel run` runs it; `python train.py` alone only defines functions.
"""

import gc
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

# ----------------------------------------------------------------------------------------------------------------------
# The constants: plain literals, so that a search can read and set them. Learning rates are peaks; the schedule scales
# them. AdamW's are meant for a width of 768 and scale with the inverse square root of the width.

DEPTH = 8  # layers
ASPECT_RATIO = 64  # channels of width for each layer: DEPTH * ASPECT_RATIO in all, up to the next multiple of HEAD_DIM
HEAD_DIM = 128  # channels of an attention head, even
WINDOW_PATTERN = "SSSL"  # attention span, layer by layer, repeated: L sees all of the context, S the nearer half
TOTAL_BATCH_SIZE = 524288  # tokens of an optimizer step; rounded up to whole device batches
DEVICE_BATCH_SIZE = 64  # rows that go through the model at once, at most: a matter of memory and speed
EMBEDDING_LR = 0.6  # learning rate of token and value embeddings (AdamW)
UNEMBEDDING_LR = 0.004  # learning rate of the output matrix (AdamW)
MATRIX_LR = 0.04  # learning rate of all matrices between them (Muon)
SCALAR_LR = 0.5  # learning rate of the x0 scalars, and 100 times that of all other scalars (AdamW)
WEIGHT_DECAY = 0.2  # of Muon's matrices: a step shrinks weights by this share of its learning rate, where it agrees
ADAM_BETAS = (0.8, 0.95)  # what AdamW's running means of gradient and squared gradient keep in a step
WARMUP_RATIO = 0.0  # share of the budget over which the learning rates rise from 0
WARMDOWN_RATIO = 0.5  # share of the budget over which they fall again, at its end
FINAL_LR_FRAC = 0.0  # where they fall to, as a share of the peak


# ----------------------------------------------------------------------------------------------------------------------
# What the laboratory hands over.


class Spec(Protocol):
    """What is to be built."""

    vocab_size: int
    context: int  # tokens of a row, in training and in scoring
    device: str  # "cpu" or "cuda"
    seed: int
    budget_seconds: float
    rows: int  # rows of a block that the scorer sends


class Clock(Protocol):
    """The budget, as far as training may see it."""

    def progress(self) -> float:
        """The share of the budget that is spent: 0 at the start, 1 at the end."""

    def report(self, step: int, loss: float, tokens: int) -> None:
        """Records a point of the training curve: `loss` in nats a token, `tokens` trained on so far."""


# ----------------------------------------------------------------------------------------------------------------------
# The model. B rows, T tokens, C channels (the width), H heads of D channels.
# Parameters are fp32; activations are bf16 on a GPU and fp32 on a CPU, and a matrix is cast where it is used.


class Linear(nn.Linear):
    """A matrix without a bias, used in the precision of what it multiplies.

    It begins uniform, with a variance that keeps the size of its input, times `scale` squared.
    """

    def __init__(self, inputs: int, outputs: int, scale: float = 1.0) -> None:
        super().__init__(inputs, outputs, bias=False)
        bound = scale * math.sqrt(3 / inputs)
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) to (..., outputs)."""
        return F.linear(x, self.weight.to(x.dtype))


def norm(x: Tensor) -> Tensor:
    """Scales the last dimension to a root mean square of 1; nothing is learned."""
    return F.rms_norm(x, (x.size(-1),), eps=1e-6)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """RoPE (arXiv 2104.09864): turns the pairs (channel i, channel i + D / 2) of x (B, H, T, D) by angles (T, D)."""
    return x * cosine + x.roll(x.size(-1) // 2, dims=-1) * sine


def sliding_mask(window: int, context: int, device: str) -> Tensor | BlockMask | None:
    """Who sees whom when a token sees itself and the `window - 1` before it; None if that is everyone before it."""
    if window >= context:
        return None
    if device == "cuda":  # blocks that nobody looks at are skipped, in a kernel compiled for this mask

        def near(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (query >= key) & (query - key < window)

        return create_block_mask(near, B=None, H=None, Q_LEN=context, KV_LEN=context, device=device)
    position = torch.arange(context, device=device)
    distance = position[:, None] - position[None, :]
    return (distance >= 0) & (distance < window)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | BlockMask | None) -> Tensor:
    """Causal attention over (B, H, T, D), fused; through the window of `sliding_mask` if there is one."""
    if isinstance(mask, BlockMask):
        return flex_attention(q, k, v, block_mask=mask)
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    tokens = q.size(2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:tokens, :tokens])


class Attention(nn.Module):
    """Attention with normalised queries and keys and, in some layers, values that each token brings along.

    Value embeddings (arXiv 2410.17897) are one more table of the vocabulary, added to the values through a gate for
    each head: many parameters that cost almost no time.
    """

    def __init__(self, width: int, vocab_size: int | None) -> None:
        super().__init__()
        self.heads = width // HEAD_DIM
        self.query, self.key, self.value = Linear(width, width), Linear(width, width), Linear(width, width)
        self.out = Linear(width, width, scale=0.0)  # what writes into the residual stream begins at zero
        self.table, self.gate = None, None
        if vocab_size is not None:
            self.table = nn.Embedding(vocab_size, width)
            self.gate = nn.Parameter(torch.ones(self.heads, 1, 1))
            nn.init.normal_(self.table.weight, std=width**-0.5)

    def forward(
        self, x: Tensor, tokens: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | BlockMask | None
    ) -> Tensor:
        """(B, T, C) to (B, T, C)."""

        def split(y: Tensor) -> Tensor:
            return y.view(*tokens.shape, self.heads, HEAD_DIM).transpose(1, 2)  # (B, H, T, D)

        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        if self.table is not None and self.gate is not None:
            v = v + self.gate.to(x.dtype) * split(self.table(tokens).to(x.dtype))
        q, k = norm(rotate(torch.cat((q, k)), *rotary)).chunk(2)
        return cast(Tensor, self.out(attend(q, k, v, mask).transpose(1, 2).flatten(2)))


class FeedForward(nn.Module):
    """Two matrices with a squared ReLU between them (arXiv 2109.08668)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = Linear(width, 4 * width), Linear(4 * width, width, scale=0.0)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, T, C)."""
        return cast(Tensor, self.down(F.relu(self.up(x)).square()))


class GPT(nn.Module):
    """A decoder: from tokens to the logits of the next token, or to their loss.

    Each layer starts from a mixture of the residual stream and the embedding, in learned proportions.
    """

    cosine: Tensor
    sine: Tensor

    def __init__(self, vocab_size: int, context: int, device: str) -> None:
        super().__init__()
        width = math.ceil(DEPTH * ASPECT_RATIO / HEAD_DIM) * HEAD_DIM
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        with torch.device(device):
            self.embedding = nn.Embedding(vocab_size, width)
            # Value embeddings in every second layer, the last one among them.
            tables = [vocab_size if (DEPTH - 1 - layer) % 2 == 0 else None for layer in range(DEPTH)]
            self.attention = nn.ModuleList(Attention(width, table) for table in tables)
            self.feed_forward = nn.ModuleList(FeedForward(width) for _ in range(DEPTH))
            self.unembedding = Linear(width, vocab_size, scale=0.001 * math.sqrt(width))
            self.residual = nn.Parameter(torch.ones(DEPTH))
            self.x0 = nn.Parameter(torch.full((DEPTH,), 0.1))
            frequency = 10000 ** -(torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
            angle = torch.arange(context)[:, None] * frequency  # (T, D / 2), in radians
            cosine, sine = torch.cat((angle.cos(), angle.cos()), 1), torch.cat((-angle.sin(), angle.sin()), 1)
        nn.init.normal_(self.embedding.weight)
        self.register_buffer("cosine", cosine.to(self.dtype), persistent=False)
        self.register_buffer("sine", sine.to(self.dtype), persistent=False)
        windows = {"L": context, "S": max(1, context // 2)}
        masks = {letter: sliding_mask(window, context, device) for letter, window in windows.items()}
        self.masks = [masks[WINDOW_PATTERN[layer % len(WINDOW_PATTERN)]] for layer in range(DEPTH)]

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """The mean loss in nats against targets (B, T); without them, the logits (B, T, vocabulary) in fp32."""
        length = tokens.size(1)
        rotary = self.cosine[:length], self.sine[:length]
        x = x0 = norm(self.embedding(tokens).to(self.dtype))
        for layer, (attention, feed_forward) in enumerate(zip(self.attention, self.feed_forward, strict=True)):
            x = self.residual[layer] * x + self.x0[layer] * x0
            x = x + attention(norm(x), tokens, rotary, self.masks[layer])
            x = x + feed_forward(norm(x))
        logits = 15 * torch.tanh(self.unembedding(norm(x) / 15).float())  # a soft cap: no logit leaves [-15, 15]
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# ----------------------------------------------------------------------------------------------------------------------
# The optimizer.

# Each row is one odd polynomial, a x + b x^3 + c x^5; one after the other they bring every singular value near 1, as
# fast as five of degree five can ("The Polar Express", arXiv 2505.16932).
POLAR_EXPRESS = (
    (8.15655, -22.48329, 15.87877),
    (4.04293, -2.80892, 0.50000),
    (3.89167, -2.77248, 0.50606),
    (3.28575, -2.36813, 0.46449),
    (2.34654, -1.70978, 0.42324),
)


def orthogonalise(x: Tensor) -> Tensor:
    """Replaces each matrix of (N, rows, columns) by the nearest one whose singular values are all (almost) 1."""
    tall = x.size(1) > x.size(2)
    y = x.mT if tall else x
    y = y / (1.02 * y.norm(dim=(1, 2), keepdim=True) + 1e-7)  # the polynomials expect singular values up to 1
    if y.is_cuda:
        y = y.bfloat16()
    for a, b, c in POLAR_EXPRESS:
        gram = y @ y.mT
        y = torch.baddbmm(y, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), y, beta=a)
    return (y.mT if tall else y).to(x.dtype)


class Muon:
    """Momentum whose steps are orthogonal matrices (Jordan et al., 2024); matrices of one shape go in one batch."""

    def __init__(self, matrices: list[nn.Parameter]) -> None:
        shapes = dict.fromkeys(matrix.shape for matrix in matrices)
        groups = [[matrix for matrix in matrices if matrix.shape == shape] for shape in shapes]
        self.groups = [(group, torch.zeros_like(torch.stack(list(group)))) for group in groups]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One step along the gradients, with Nesterov momentum and cautious weight decay (arXiv 2510.12402)."""
        for matrices, momentum in self.groups:
            gradients = torch.stack([cast(Tensor, matrix.grad) for matrix in matrices])
            momentum.lerp_(gradients, 0.05)
            update = orthogonalise(gradients.lerp(momentum, 0.95))
            weights = torch.stack(list(matrices))
            update += WEIGHT_DECAY * weights * (update * weights > 0)
            rows, columns = update.shape[1:]
            weights -= lr * math.sqrt(max(1.0, rows / columns)) * update  # the same change of the output for any shape
            for matrix, weight in zip(matrices, weights, strict=True):
                matrix.copy_(weight)


class AdamW:
    """AdamW (Loshchilov & Hutter, 2019) without decay, each parameter with a peak learning rate of its own.

    Written out because making one of torch.optim imports torch's compiler, which takes a second that CPUs need not pay.
    """

    def __init__(self, rates: list[tuple[Tensor, float]]) -> None:
        self.rates = rates
        self.moments = [(torch.zeros_like(parameter), torch.zeros_like(parameter)) for parameter, _ in rates]
        self.steps = 0

    @torch.no_grad()
    def step(self, share: float) -> None:
        """One step along the gradients at this share of the peak learning rates."""
        self.steps += 1
        first, second = (1 - beta**self.steps for beta in ADAM_BETAS)  # what the means have seen of their gradients
        for (parameter, rate), (mean, square) in zip(self.rates, self.moments, strict=True):
            gradient = cast(Tensor, parameter.grad)
            mean.lerp_(gradient, 1 - ADAM_BETAS[0])
            square.lerp_(gradient.square(), 1 - ADAM_BETAS[1])
            parameter.addcdiv_(mean, (square / second).sqrt_().add_(1e-10), value=-rate * share / first)


class Optimizer:
    """Muon for the matrices between the embeddings, AdamW for all the rest."""

    def __init__(self, model: GPT) -> None:
        embeddings = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
        apart = {id(parameter) for parameter in [*embeddings, model.unembedding.weight, model.x0]}
        others = [parameter for parameter in model.parameters() if id(parameter) not in apart]
        scale = math.sqrt(768 / model.embedding.embedding_dim)
        rates: list[tuple[list[Tensor], float]] = [
            (embeddings, EMBEDDING_LR * scale),
            ([model.unembedding.weight], UNEMBEDDING_LR * scale),
            ([model.x0], SCALAR_LR),
            # Factors of a path: a change of one is felt in every layer after it.
            ([parameter for parameter in others if parameter.ndim != 2], SCALAR_LR / 100),
        ]
        self.adamw = AdamW([(parameter, rate) for parameters, rate in rates for parameter in parameters])
        self.muon = Muon([parameter for parameter in others if parameter.ndim == 2])

    def step(self, share: float) -> None:
        """One step at this share of the peak learning rates."""
        self.adamw.step(share)
        self.muon.step(MATRIX_LR * share)


def schedule(progress: float) -> float:
    """The share of the peak learning rates at this share of the budget: a trapezoid. Ramps that overlap: the lower."""
    rise = progress / WARMUP_RATIO if WARMUP_RATIO > 0 else 1.0
    left = (1 - progress) / WARMDOWN_RATIO if WARMDOWN_RATIO > 0 else 1.0
    return min(1.0, rise, FINAL_LR_FRAC + (1 - FINAL_LR_FRAC) * max(0.0, left))


# ----------------------------------------------------------------------------------------------------------------------
# The run.


@dataclass
class State:
    """What `build` hands to `train`, and `train` to `logits`."""

    spec: Spec
    model: GPT
    forward: Callable[..., Tensor]  # the model, compiled on a GPU
    optimizer: Optimizer


def batch_shape(context: int) -> tuple[int, int]:
    """Device batches of a step, and rows of each.

    All have the same number of rows, at most DEVICE_BATCH_SIZE; a TOTAL_BATCH_SIZE that is no multiple is rounded up,
    and one that fills no device batch makes that one smaller.
    """
    rows = math.ceil(TOTAL_BATCH_SIZE / context)
    pieces = math.ceil(rows / DEVICE_BATCH_SIZE)
    return pieces, math.ceil(rows / pieces)


def batches(tokens: Tensor, rows: int, context: int, device: str, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless inputs and targets, (rows, context) each: the corpus cut into rows, shuffled anew in each epoch."""
    count = (len(tokens) - 1) // context
    if count < 1:
        raise ValueError(f"{len(tokens)} training tokens do not fill a row of {context}: prepare a larger corpus")
    generator = torch.Generator().manual_seed(seed)

    def starts() -> Iterator[int]:
        while True:
            yield from (torch.randperm(count, generator=generator) * context).tolist()

    start = starts()
    while True:
        block = torch.stack([tokens[at : at + context + 1].long() for at in (next(start) for _ in range(rows))])
        if device == "cuda":  # from pinned memory the copy waits for nothing
            block = block.pin_memory().to(device, non_blocking=True)
        yield block[:, :-1], block[:, 1:]


def take_step(state: State, data: Iterator[tuple[Tensor, Tensor]], pieces: int, share: float) -> float:
    """One optimizer step on the next `pieces` device batches; the mean loss, once the device has finished."""
    loss = torch.zeros((), device=state.spec.device)
    for _ in range(pieces):
        inputs, targets = next(data)
        piece = state.forward(inputs, targets) / pieces
        torch.autograd.backward(piece)
        loss += piece.detach()
    state.optimizer.step(share)
    state.model.zero_grad()
    return loss.item()


def build(spec: Spec) -> State:
    """The model as it is before training, warmed up: the same for the same seed.

    Raises:
        ValueError: a constant that no model can have.
    """
    if min(DEPTH, ASPECT_RATIO, TOTAL_BATCH_SIZE, DEVICE_BATCH_SIZE) < 1:
        raise ValueError("DEPTH, ASPECT_RATIO, TOTAL_BATCH_SIZE and DEVICE_BATCH_SIZE must be at least 1")
    if HEAD_DIM < 2 or HEAD_DIM % 2:
        raise ValueError(f"HEAD_DIM must be even, since rotary positions turn pairs of channels; got {HEAD_DIM}")
    if not WINDOW_PATTERN or set(WINDOW_PATTERN) - set("LS"):
        raise ValueError(f"WINDOW_PATTERN must be made of the letters L and S, got {WINDOW_PATTERN!r}")
    torch.manual_seed(spec.seed)
    model = GPT(spec.vocab_size, spec.context, spec.device)
    forward = torch.compile(model, dynamic=False) if spec.device == "cuda" else model
    state = State(spec, model, forward, Optimizer(model))

    # Training and scoring are done once on random tokens, so that compiling and allocating happen here. A learning rate
    # of 0 leaves the model as it is; the optimizer, which remembers the step, is made anew.
    _, rows = batch_shape(spec.context)
    noise = torch.randint(spec.vocab_size, (max(rows, spec.rows) * spec.context + 1,))
    take_step(state, batches(noise, rows, spec.context, spec.device, spec.seed), 1, share=0.0)
    logits(state, noise[: spec.rows * spec.context].view(spec.rows, spec.context).to(spec.device))
    state.optimizer = Optimizer(model)
    return state


def train(state: State, tokens: Tensor, clock: Clock) -> None:
    """Trains until the next step would end after the budget.

    The schedule runs to where the last whole step will end, going by the mean step so far: with few, long steps that is
    well before the end of the budget, and the learning rates still come down all the way.

    Args:
        state: what `build` made.
        tokens: (N,) uint16 on the CPU: the training documents, one after the other. Not to be written to.
        clock: the budget.

    Raises:
        FloatingPointError: the loss is no longer a number.
    """
    context = state.spec.context
    pieces, rows = batch_shape(context)
    data = batches(tokens, rows, context, state.spec.device, state.spec.seed)
    gc.collect()
    gc.freeze()  # what is alive now stays: a collection during training has almost nothing to walk through
    step, cost, progress = 0, 0.0, clock.progress()  # cost: of a step, as a share of the budget
    while step == 0 or progress + cost <= 1:
        last = progress + cost * max(1, int((1 - progress) / cost)) if cost else 1.0
        loss = take_step(state, data, pieces, schedule((progress + cost / 2) / last))
        if not math.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} after step {step + 1}: lower a learning rate")
        step, progress = step + 1, clock.progress()
        cost = progress / step
        clock.report(step, loss, step * pieces * rows * context)


@torch.no_grad()
def logits(state: State, tokens: Tensor) -> Tensor:
    """Logits of the next token at each position: (B, T) int64 to (B, T, vocabulary) fp32. Nothing is remembered."""
    return state.forward(tokens)
