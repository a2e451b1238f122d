"""What the tests of the transformer share: numbers to feed in, and copies of torch's modules."""

import jaxtyping
import pytest
import torch

from groundup.core.masks import causal_mask


@pytest.fixture
def normal():
    """Draw normal numbers in float64; a call never repeats an earlier one."""
    generator = torch.Generator().manual_seed(2017)

    def draw(*shape, dtype=torch.float64):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    return draw


@pytest.fixture
def qkv(normal):
    """Every size differs: batch 2, heads 3, queries 5, keys 7, d_head 4, d_value 6."""
    return normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 6)


@pytest.fixture
def mask_named(normal):
    """Make a mask for `qkv`: none, causal, padding, or random, where some rows allow nothing."""

    def make(name):
        if name == "none":
            return None
        if name == "causal":
            return causal_mask(5, 7)
        if name == "padding":
            return torch.arange(7) < torch.tensor([4, 7])[:, None, None, None]
        return normal(2, 3, 5, 7) > 0.5

    return make


@pytest.fixture
def forward_and_backward():
    """Give the output and the gradients of a loss that no constant can hide from."""

    def run(function, *inputs):
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        output = function(*leaves)
        return output, *torch.autograd.grad(output.sin().sum(), leaves)

    return run


@pytest.fixture
def assert_equal_forward_and_backward(forward_and_backward):
    """Compare two functions by their outputs and by the gradients of all inputs."""

    def compare(ours, theirs, *inputs):
        results = (forward_and_backward(function, *inputs) for function in (ours, theirs))
        for x, y in zip(*results, strict=True):
            torch.testing.assert_close(x, y)

    return compare


@pytest.fixture
def silent_rows_stay_silent(normal):
    """Check an attention for zeros, forward and backward, where a query may see nothing."""

    def check(attend, dtype, device="cpu", length=5):
        sizes = (length, length + 2, length + 2)
        inputs = [normal(2, 3, n, 8, dtype=dtype).to(device).requires_grad_() for n in sizes]
        mask = normal(2, 3, length, length + 2) > 0
        mask[0, 1, 3] = False  # one query sees nothing
        mask[1] = False  # a whole sequence does not
        mask = mask.to(device)
        mixed = attend(*inputs, mask)
        upstream = normal(2, 3, length, 8, dtype=dtype).to(device)
        gradients = torch.autograd.grad((mixed * upstream).sum(), inputs)
        for tensor in (mixed, *gradients):
            assert tensor.isfinite().all()
            assert tensor[0].ne(0).any()
            assert tensor[1].eq(0).all()
        assert mixed[0, 1, 3].eq(0).all()
        assert gradients[0][0, 1, 3].eq(0).all()

    return check


@pytest.fixture
def tokens():
    """Draw token ids below `vocab_size`."""
    generator = torch.Generator().manual_seed(2018)

    def draw(vocab_size, *shape):
        return torch.randint(vocab_size, shape, generator=generator)

    return draw


@pytest.fixture
def shaken():
    """Give every parameter of a module random float64 values, so that a forgotten one shows."""
    generator = torch.Generator().manual_seed(2019)

    def shake(module, size=0.3):
        module.double()
        with torch.no_grad():
            for parameter in module.parameters():
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.add_(size * noise)
        return module

    return shake


@pytest.fixture
def unchecked():
    """Switch the type checker off, to meet the refusals that a user without it meets."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def transfer():
    """Copy the weights of our modules into torch's own."""

    def attention(ours, theirs):
        projections = (ours.query, ours.key, ours.value)
        weights = {
            "in_proj_weight": torch.cat([p.weight for p in projections]),
            "in_proj_bias": torch.cat([p.bias for p in projections]),
            "out_proj.weight": ours.output.weight,
            "out_proj.bias": ours.output.bias,
        }
        theirs.load_state_dict(weights)

    def norm(ours, theirs):
        theirs.load_state_dict({"weight": ours.gain, "bias": ours.bias})

    def block(ours, theirs):
        """Block to TransformerEncoderLayer, DecoderBlock to TransformerDecoderLayer."""
        attention(ours.attention, theirs.self_attn)
        norms = [ours.attention_norm, ours.feed_forward_norm]
        if hasattr(ours, "cross_attention"):
            attention(ours.cross_attention, theirs.multihead_attn)
            norms.insert(1, ours.cross_attention_norm)
        for number, own in enumerate(norms, start=1):
            norm(own, getattr(theirs, f"norm{number}"))
        theirs.linear1.load_state_dict(ours.feed_forward.up.state_dict())
        theirs.linear2.load_state_dict(ours.feed_forward.down.state_dict())
        return theirs

    block.attention, block.norm = attention, norm
    return block
