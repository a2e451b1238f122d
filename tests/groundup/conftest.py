"""What the tests of the transformer share: numbers to feed in, and copies of torch's modules."""

import jaxtyping
import pytest
import torch


@pytest.fixture
def normal():
    """Draw normal numbers in float64; a call never repeats an earlier one."""
    generator = torch.Generator().manual_seed(2017)

    def draw(*shape, dtype=torch.float64):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    return draw


@pytest.fixture
def tokens():
    """Draw token numbers below `vocab_size`."""
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
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


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
