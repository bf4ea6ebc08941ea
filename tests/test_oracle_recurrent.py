"""The LSTM against PyTorch's: values, all gradients, training in full."""

import numpy as np
import pytest
from conftest import normal

import minifpt
from minifpt import functional as F
from minifpt.optim import Adam, clip_grad_norm
from minifpt.trunks.lstm import LSTM, LSTMConfig

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle

torch.set_num_threads(1)


def close(got, want, tolerance, name=""):
    """Largest difference, relative to the largest entry."""
    want = want.detach().numpy()
    error = np.abs(got - want).max() / max(np.abs(want).max(), 1e-30)
    assert got.dtype == want.dtype and error <= tolerance, f"{name}: relative error {error:.2e}"


def copied(theirs, layer, w_ih, w_hh, bias):
    """Our weights in a layer of PyTorch's, which has two biases where we have their sum."""
    with torch.no_grad():
        getattr(theirs, f"weight_ih_l{layer}").copy_(torch.tensor(w_ih.T.copy()))
        getattr(theirs, f"weight_hh_l{layer}").copy_(torch.tensor(w_hh.T.copy()))
        getattr(theirs, f"bias_ih_l{layer}").copy_(torch.tensor(bias))
        getattr(theirs, f"bias_hh_l{layer}").zero_()
    getattr(theirs, f"bias_hh_l{layer}").requires_grad = False


@pytest.mark.parametrize("dtype, tolerance", [(np.float64, 1e-10), (np.float32, 2e-5)])
@pytest.mark.parametrize("B, T, C, layers", [(1, 1, 3, 1), (3, 7, 4, 2), (2, 60, 16, 3)])
def test_layers_on_each_other(B, T, C, layers, dtype, tolerance):
    """Several operations, one on the other, are ``torch.nn.LSTM`` with as many layers."""
    D = C + 2
    weights = [[normal(*shape, seed=3 * i + j).astype(dtype) / D ** 0.5 for j, shape in enumerate(
        [(D if i else C, 4 * D), (D, 4 * D), (4 * D,)])] for i in range(layers)]
    theirs = torch.nn.LSTM(C, D, layers, batch_first=True).to(getattr(torch, np.dtype(dtype).name))
    for i, arrays in enumerate(weights):
        copied(theirs, i, *arrays)
    x = normal(B, T, C, seed=50).astype(dtype)
    y, caches = x, []
    for arrays in weights:
        y, cache = F.lstm(y, *arrays)
        caches.append(cache)
    t = torch.tensor(x, requires_grad=True)
    want, (_, cell) = theirs(t)
    close(y, want, tolerance)
    close(caches[-1].cell[:, -1], cell[-1], tolerance)
    dy = normal(B, T, D, seed=51).astype(dtype)
    want.backward(torch.tensor(dy))
    for i, cache in reversed([*enumerate(caches)]):
        dy, dw_ih, dw_hh, db = F.lstm_backward(dy, cache)
        close(dw_ih.T, getattr(theirs, f"weight_ih_l{i}").grad, tolerance, f"w_ih {i}")
        close(dw_hh.T, getattr(theirs, f"weight_hh_l{i}").grad, tolerance, f"w_hh {i}")
        close(db, getattr(theirs, f"bias_ih_l{i}").grad, tolerance, f"b {i}")
    close(dy, t.grad, tolerance, "x")


class Theirs(torch.nn.Module):
    """The same model from PyTorch's layers, with a copy of our weights."""

    def __init__(self, model):
        super().__init__()
        trunk, c = model.trunk, model.trunk.config
        self.config, self.output_tokens = c, model.output_tokens
        self.h = torch.nn.ModuleList(torch.nn.LSTM(c.n_embd, c.n_embd, batch_first=True)
                                     for _ in range(c.n_layer))
        self.ln = torch.nn.ModuleList(torch.nn.LayerNorm(c.n_embd) for _ in range(c.n_layer + 1))
        self.input, self.output = (torch.nn.Linear(*layer.weight.data.shape)
                                   for layer in (model.input, model.output))
        if c.positions:
            self.wpe = torch.nn.Parameter(torch.tensor(trunk.wpe.weight.data))
        self.to(getattr(torch, trunk.dtype.name))
        with torch.no_grad():
            for linear, layer in ((self.input, model.input), (self.output, model.output)):
                linear.weight.copy_(torch.tensor(layer.weight.data.T.copy()))
                linear.bias.copy_(torch.tensor(layer.bias.data))
        for theirs, block in zip(self.h, trunk.h, strict=True):
            copied(theirs, 0, *(p.data for p in block.lstm.parameters()))

    def forward(self, x):
        x = self.input(x)
        if self.config.positions:
            x = x + self.wpe[:x.shape[1]]
        for ln, lstm in zip(self.ln, self.h, strict=False):
            y, _ = lstm(ln(x))
            x = x + y if self.config.residual else y
        return self.output(self.ln[-1](x)[:, -self.output_tokens:])

    def named(self):
        """{our name: (parameter, whether it is transposed)}."""
        named = {f"{part}.{n}": (getattr(getattr(self, part), n), n == "weight")
                 for part in ("input", "output") for n in ("weight", "bias")}
        for i, lstm in enumerate(self.h):
            at = f"trunk.h.{i}"
            named |= {f"{at}.lstm.weight_ih": (lstm.weight_ih_l0, True),
                      f"{at}.lstm.weight_hh": (lstm.weight_hh_l0, True),
                      f"{at}.lstm.bias": (lstm.bias_ih_l0, False)}
            named |= {f"{at}.ln_1.{n}": (getattr(self.ln[i], n), False) for n in ("weight", "bias")}
        named |= {f"trunk.ln_f.{n}": (getattr(self.ln[-1], n), False) for n in ("weight", "bias")}
        if self.config.positions:
            named["trunk.wpe.weight"] = self.wpe, False
        return named


@pytest.mark.parametrize("freeze", ["full", "fpt"])
@pytest.mark.parametrize("dtype, tolerance", [(np.float64, 1e-7), (np.float32, 1e-3)])
@pytest.mark.parametrize("layers, residual, positions", [(1, False, False), (3, False, False),
                                                         (4, True, True)])
def test_training_gives_the_losses_of_pytorch(layers, residual, positions, dtype, tolerance,
                                              freeze):
    """Forty steps of bit XOR from the same start on the same batches: the first gradients, every
    loss, the last weights."""
    task = minifpt.tasks.get("bit-xor", n=3)
    config = LSTMConfig(layers, 24, 8, 0.0, residual, positions)
    model = minifpt.FPT(LSTM(config, 0, dtype), task.input_dim, task.output_dim, task.output_tokens)
    model.freeze(minifpt.FreezeMask.parse(freeze))
    theirs = Theirs(model)
    named, ours = theirs.named(), dict(model.named_parameters())
    assert named.keys() == ours.keys()
    for name, p in ours.items():
        named[name][0].requires_grad = p.trainable
    trained = [p for p in ours.values() if p.trainable]
    adam = Adam(trained, lr=1e-3)
    their_trained = [named[n][0] for n, p in ours.items() if p.trainable]
    their_adam = torch.optim.Adam(their_trained, lr=1e-3)
    losses, want, draws = [], [], np.random.default_rng(0)
    for step in range(40):
        x, y = task.batch(draws, 4, "train")
        model.zero_grad()
        logits, cache = model.forward(x.astype(dtype), train=True)
        loss, dlogits = task.loss(logits, y)
        model.backward(dlogits, cache)
        their_logits = theirs(torch.tensor(x.astype(dtype)))
        their_loss = torch.nn.functional.cross_entropy(their_logits.reshape(-1, 2),
                                                       torch.tensor(y).reshape(-1))
        their_adam.zero_grad()
        their_loss.backward()
        if step == 0:
            for name, p in ours.items():
                if p.trainable:
                    grad, turned = named[name][0].grad, named[name][1]
                    close(p.grad, grad.T if turned else grad, tolerance, name)
        clip_grad_norm(trained, 1.0)
        torch.nn.utils.clip_grad_norm_(their_trained, 1.0)
        adam.step()
        their_adam.step()
        losses.append(float(loss))
        want.append(their_loss.item())
    np.testing.assert_allclose(losses, want, rtol=tolerance)
    assert np.ptp(losses) > 0.02                          # something was learnt or moved
    for name, p in ours.items():
        their, turned = named[name]
        close(p.data, their.T if turned else their, 20 * tolerance, name)
