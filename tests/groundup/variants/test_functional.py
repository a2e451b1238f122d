import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jacrev, vmap

from groundup.core.config import DecoderOnlyConfig, EncoderDecoderConfig, EncoderOnlyConfig
from groundup.core.masks import causal_mask, padding_mask
from groundup.core.models import DecoderOnly, EncoderDecoder, EncoderOnly
from groundup.variants.functional import (
    cross_entropy,
    decoder_only,
    dropout,
    encoder_decoder,
    encoder_only,
    flatten,
    from_module,
    init,
    loss,
    sgd_step,
    to_module,
    tree_map,
)

# Sizes: vocabulary 19 (source 23), 7 tokens (source 5), batch 3, d_model 24, 4 heads, d_ff 13.

SMALL = {
    "vocab_size": 19,
    "max_len": 11,
    "d_model": 24,
    "num_layers": 2,
    "num_heads": 4,
    "d_ff": 13,
    "positions": "rotary",
    "norm_order": "pre",
    "activation": "gelu",
    "dropout": 0.2,
    "tie_embeddings": True,
}
SOURCE = {"source_vocab_size": 23, "source_max_len": 17, "num_encoder_layers": 3}
PARTS = {
    **{f"{name} positions": {"positions": name} for name in ("sinusoidal", "learned", "none")},
    **{f"{name} positions": {"positions": name} for name in ("rotary", "alibi")},
    **{f"activation {name}": {"activation": name} for name in ("relu", "gelu_tanh")},
    **{f"activation {name}": {"activation": name} for name in ("squared_relu", "swiglu", "geglu")},
    "activation geglu_tanh": {"activation": "geglu_tanh"},
    "rotary base": {"rotary_base": 100.0},
    "rotary frequencies, scale": {"rotary_frequencies": (0.7, 0.2, 0.03), "rotary_scale": 1.3},
    "rotary scale": {"rotary_scale": 1.3},
    "width of heads": {"head_width": 8, "num_kv_heads": 2},
    "norm rms, eps": {"norm": "rms", "norm_eps": 0.1},
    "norm after, eps": {"norm_order": "post", "norm_eps": 0.1},
    "norm rms after": {"norm_order": "post", "norm": "rms"},
    "norm of queries and keys, eps": {"qk_norm": True, "norm_eps": 0.1},
    "two key heads": {"num_kv_heads": 2},
    "one key head": {"num_kv_heads": 1, "positions": "alibi"},
    "no biases": {"bias": False, "activation": "swiglu"},
    "two tables": {"tie_embeddings": False},
    "zero outputs": {"zero_init_outputs": True},
}
WRITER = {**PARTS, "window": {"window": 3}}
READER = {
    **PARTS,
    "answer for the sequence": {"answers": "sequence"},
    "two classes after norm": {
        "answers": "sequence",
        "num_outputs": 2,
        "norm_order": "post",
        "tie_embeddings": False,
    },
}
TRANSLATOR = {
    **PARTS,
    "one table": {"tie_source_embeddings": True, "source_vocab_size": 19},
    "one table that does not write": {
        "tie_source_embeddings": True,
        "source_vocab_size": 19,
        "tie_embeddings": False,
        "positions": "learned",
    },
}
LENGTHS = torch.tensor([5, 2, 0])  # with nothing to attend to, zeros


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def decoder(shaken):
    def build(**overrides):
        config = DecoderOnlyConfig(**SMALL | overrides)
        return shaken(DecoderOnly(config, generator()).eval())

    return build


@pytest.fixture
def encoder(shaken):
    def build(**overrides):
        config = EncoderOnlyConfig(**SMALL | overrides)
        return shaken(EncoderOnly(config, generator()).eval())

    return build


@pytest.fixture
def translator(shaken):
    def build(**overrides):
        config = EncoderDecoderConfig(**SMALL | SOURCE | overrides)
        return shaken(EncoderDecoder(config, generator()).eval())

    return build


def assert_same_function(model, pure, given, masks):
    """Outputs, and the gradients of a curved function of them, are those of the module."""
    parameters = from_module(model)
    out = model(*given, *masks)

    def curved(parameters):
        logits = pure(parameters, *given, model.config, *masks)
        return logits.square().sum(), logits

    gradients, logits = grad(curved, has_aux=True)(parameters)
    torch.testing.assert_close(logits, out, rtol=0, atol=1e-10)
    out.square().sum().backward()
    gradients = flatten(gradients)
    assert gradients.keys() == dict(model.named_parameters()).keys()
    for name, parameter in model.named_parameters():
        assert torch.any(parameter.grad != 0) or name.endswith("key.bias"), name
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-9, atol=1e-9)


# By hand


def test_cross_entropy_by_hand():
    """Chances 3/4 and 1/2 of the right tokens: the mean of ln 4/3 and ln 2."""
    logits = torch.tensor([[math.log(3), 0.0], [7.0, 7.0]])
    expected = (math.log(4 / 3) + math.log(2)) / 2
    assert cross_entropy(logits, torch.tensor([0, 1])).item() == pytest.approx(expected)


def test_trees_by_hand():
    one, two, three = (torch.tensor([x]) for x in (1.0, 2.0, 3.0))
    tree, other = {"a": {"b": one}, "c": two}, {"a": {"b": three}, "c": three}
    assert flatten(tree) == {"a.b": one, "c": two}
    assert tree_map(torch.add, tree, other) == {"a": {"b": torch.tensor([4.0])}, "c": one + 4}
    assert sgd_step(tree, other, 0.5) == {"a": {"b": one - 1.5}, "c": two - 1.5}


def test_dropout_by_hand():
    """At rate 1/4, a number is 0 or 4/3 of itself; at rate 0, it is itself."""
    sixes = torch.full((3, 100), 6.0)
    assert set(dropout(sixes, 0.25, generator()).unique().tolist()) == {0.0, 8.0}
    assert torch.equal(dropout(sixes, 0.0, generator()), sixes)


# Against the modules


@pytest.mark.parametrize("part", WRITER)
def test_a_decoder_equals_its_module_forward_and_backward(decoder, tokens, part):
    mask = causal_mask(7).logical_not() | torch.eye(7, dtype=torch.bool)
    mask[:, 0] = mask[4, 2] = True
    model = decoder(**WRITER[part])
    assert_same_function(model, decoder_only, [tokens(19, 3, 7)], [None])
    model.zero_grad()
    assert_same_function(model, decoder_only, [tokens(19, 3, 7)], [mask])


@pytest.mark.parametrize("part", READER)
def test_an_encoder_equals_its_module_forward_and_backward(encoder, tokens, part):
    model = encoder(**READER[part])
    assert_same_function(model, encoder_only, [tokens(19, 3, 5)], [None])
    model.zero_grad()
    assert_same_function(model, encoder_only, [tokens(19, 3, 5)], [padding_mask(LENGTHS, 5)])


@pytest.mark.slow
@pytest.mark.parametrize("part", TRANSLATOR)
def test_a_translator_equals_its_module_forward_and_backward(translator, tokens, part):
    model = translator(**TRANSLATOR[part])
    given = [tokens(19, 3, 5), tokens(19, 3, 7)]
    target_mask = padding_mask(torch.tensor([7, 6, 3]), 7)
    masks = [padding_mask(LENGTHS, 5), target_mask]
    assert_same_function(model, encoder_decoder, given, [None, None])
    model.zero_grad()
    assert_same_function(model, encoder_decoder, given, masks)


def test_the_tree_is_what_functional_call_takes(decoder, tokens):
    model, numbers = decoder(tie_embeddings=True), tokens(19, 3, 7)
    parameters = tree_map(lambda p: p + 0.1, from_module(model))
    ours = decoder_only(parameters, numbers, model.config)
    theirs = functional_call(model, flatten(parameters), (numbers,))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_training_gives_the_losses_of_the_module_under_torch_s_sgd(decoder, tokens, tie_embeddings):
    model = decoder(tie_embeddings=tie_embeddings)
    parameters, numbers = from_module(model), tokens(19, 3, 8)
    inputs, targets = numbers[:, :-1], numbers[:, 1:]
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05), []
    for _ in range(5):
        expected = torch.nn.functional.cross_entropy(model(inputs).mT, targets)
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        ours = loss(parameters, inputs, targets, model.config)
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)
        gradients = grad(loss)(parameters, inputs, targets, model.config)
        parameters = sgd_step(parameters, gradients, 0.05)
        losses.append(ours.item())
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("norm_order", ["pre", "post"])
def test_dropout_falls_where_the_modules_have_it(
    decoder, encoder, translator, tokens, monkeypatch, norm_order
):
    ours, theirs = generator(3), generator(3)

    def drop(module, x):
        return dropout(x, module.p, theirs) if module.training else x

    monkeypatch.setattr(nn.Dropout, "forward", drop)
    one, two = tokens(19, 3, 5), tokens(19, 3, 7)
    for build, pure, given in (
        (decoder, decoder_only, [one]),
        (encoder, encoder_only, [one]),
        (translator, encoder_decoder, [one, two]),
    ):
        model = build(norm_order=norm_order)
        out = pure(from_module(model), *given, model.config, generator=ours)
        torch.testing.assert_close(out, model.train()(*given), rtol=0, atol=1e-10)
        assert not torch.allclose(out, model.eval()(*given), atol=0.1)


@pytest.mark.parametrize(
    ("model", "config", "parts"),
    [
        (DecoderOnly, DecoderOnlyConfig, WRITER),
        (EncoderOnly, EncoderOnlyConfig, READER),
        (EncoderDecoder, partial(EncoderDecoderConfig, **SOURCE), TRANSLATOR),
    ],
)
def test_initial_parameters_have_the_names_shapes_and_sizes_of_the_modules(model, config, parts):
    for name, choices in parts.items():
        settings = config(**SMALL | choices) if "source_vocab_size" not in choices else None
        if settings is None:
            settings = EncoderDecoderConfig(**SMALL | SOURCE | choices)
        trees = init(settings, generator(1)), from_module(model(settings, generator(2)))
        tree_map(torch.add, *trees)  # refuses trees of two forms
        ours, theirs = map(flatten, trees)
        for key, values in theirs.items():
            assert ours[key].shape == values.shape, (name, key)
            if values.ndim == 1:
                assert torch.equal(ours[key], values), (name, key)
            else:  # two sets of at least 264 numbers: their spreads differ by 20 % at most
                spread = values.std().item()
                assert ours[key].std().item() == pytest.approx(spread, rel=0.2), (name, key)


# Laws


@pytest.mark.parametrize("part", WRITER)
def test_one_sequence_mapped_over_a_batch_is_the_batch(decoder, tokens, part):
    model, numbers = decoder(**WRITER[part]), tokens(19, 3, 7)
    parameters, config = from_module(model), model.config
    batch = decoder_only(parameters, numbers, config)
    mapped = vmap(lambda row: decoder_only(parameters, row, config))(numbers)
    torch.testing.assert_close(mapped, batch, rtol=0, atol=1e-10)
    single = decoder_only(parameters, numbers[1], config)
    torch.testing.assert_close(single, batch[1], rtol=0, atol=1e-10)


def test_the_other_models_map_over_a_batch_too(encoder, translator, tokens):
    numbers, source, mask = tokens(19, 3, 7), tokens(23, 3, 5), padding_mask(LENGTHS, 5)
    for answers in ("tokens", "sequence"):
        model = encoder(answers=answers)
        parameters, config = from_module(model), model.config
        pure = partial(encoder_only, parameters, config=config)
        mapped = vmap(lambda row, own, pure=pure: pure(row, mask=own))(source % 19, mask)
        expected = pure(source % 19, mask=mask)
        torch.testing.assert_close(mapped, expected, rtol=0, atol=1e-10)
    model = translator()
    parameters, config = from_module(model), model.config
    mapped = vmap(lambda *pair: encoder_decoder(parameters, *pair, config))(source, numbers)
    expected = encoder_decoder(parameters, source, numbers, config)
    torch.testing.assert_close(mapped, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("part", ["rotary positions", "alibi positions", "two key heads"])
def test_the_gradients_of_the_examples_average_to_that_of_the_batch(decoder, tokens, part):
    model, numbers = decoder(**PARTS[part]), tokens(19, 3, 8)
    parameters, config = from_module(model), model.config
    inputs, targets = numbers[:, :-1], numbers[:, 1:]
    whole = grad(loss)(parameters, inputs, targets, config)
    each = vmap(lambda *pair: grad(loss)(parameters, *pair, config))(inputs, targets)
    for name, examples in flatten(each).items():
        assert len(examples) == 3
        torch.testing.assert_close(examples.mean(dim=0), flatten(whole)[name])


def test_dropout_keeps_the_mean_and_drops_at_its_rate():
    x = torch.arange(1.0, 8, dtype=torch.float64).repeat(20_000, 1)
    dropped = dropout(x, 0.3, generator())
    torch.testing.assert_close(dropped.mean(dim=0), x[0], rtol=0.02, atol=0)
    assert (dropped == 0).double().mean().item() == pytest.approx(0.3, abs=0.01)


def test_dropout_follows_its_generator_and_no_other(decoder, tokens):
    model, numbers = decoder(attention_dropout=0.4), tokens(19, 3, 7)
    pure = partial(decoder_only, from_module(model), numbers, model.config)
    before, own = torch.get_rng_state(), generator(3)
    first, next_one = pure(generator=own), pure(generator=own)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(pure(generator=generator(3)), first)
    for other in (next_one, pure(generator=generator(4)), pure()):
        assert not torch.allclose(other, first, atol=0.1)


def test_dropout_at_rate_zero_is_evaluation(decoder, encoder, translator, tokens):
    one, two = tokens(19, 3, 5), tokens(19, 3, 7)
    for build, pure, given in (
        (decoder, decoder_only, [one]),
        (encoder, encoder_only, [one]),
        (translator, encoder_decoder, [one, two]),
    ):
        model = build(dropout=0.0)
        out = partial(pure, from_module(model), *given, model.config)
        assert torch.equal(out(generator=generator()), out())


def test_attention_dropout_leaves_the_mean_of_the_attention(decoder, tokens):
    """In one layer that writes a thousandth to the stream, where all that follows is linear."""
    model = decoder(dropout=0.0, attention_dropout=0.4, num_layers=1, norm_order="post")
    parameters, row = from_module(model), tokens(19, 7)
    parameters["blocks"]["0"]["attention"]["output"]["weight"].mul_(1e-3)
    evaluated = decoder_only(parameters, row, model.config)
    rows = row.expand(4000, 7)
    drawn = decoder_only(parameters, rows, model.config, generator=generator())
    spread = drawn.std(dim=0)
    assert (spread > 1e-5).all()
    assert ((drawn.mean(dim=0) - evaluated).abs() < 0.1 * spread + 1e-6).all()


@pytest.mark.parametrize("choices", [{}, {"attention_dropout": 0.4, "dropout": 0.0}])
def test_each_example_drops_what_it_drops_in_the_batch(decoder, translator, tokens, choices):
    """Gradients of the examples, mapped, average to that of the batch, if draws differ."""
    numbers, source = tokens(19, 3, 8), tokens(23, 3, 5)
    inputs, targets = numbers[:, :-1], numbers[:, 1:]

    def loss_of_pair(parameters, source, inputs, targets, config, generator):
        logits = encoder_decoder(parameters, source, inputs, config, generator=generator)
        return cross_entropy(logits, targets)

    model, both = decoder(**choices), translator(**choices, num_encoder_layers=1)
    for own, function, given in (
        (model, loss, (inputs, targets)),
        (both, loss_of_pair, (source, inputs, targets)),
    ):
        parameters = from_module(own)
        draws = {"config": own.config, "generator": generator(3)}
        each = vmap(
            lambda *row, f=function, p=parameters, d=draws: grad(f)(p, *row, **d),
            randomness="different",
        )(*given)
        whole, evaluated = (
            flatten(grad(function)(parameters, *given, **draws | {"generator": drawn}))
            for drawn in (generator(3), None)
        )
        for name, examples in flatten(each).items():
            torch.testing.assert_close(examples.mean(dim=0), whole[name])
            assert name.endswith("key.bias") or not torch.equal(whole[name], evaluated[name]), name


def test_mapped_examples_drop_the_same_or_their_own_as_they_are_told(decoder, tokens):
    model, rows = decoder(), tokens(19, 7).expand(3, 7)
    pure = partial(decoder_only, from_module(model), config=model.config, generator=generator())
    for how, agree in (("same", True), ("different", False)):
        first, *others = vmap(pure, randomness=how)(rows)
        assert [torch.allclose(first, other) for other in others] == [agree, agree]


def test_a_gradient_with_dropout_is_the_slope_of_the_loss(translator, tokens):
    """Along a direction, against a small step with the same numbers dropped."""
    model, step = translator(attention_dropout=0.4), 1e-5
    source, numbers, parameters = tokens(23, 3, 5), tokens(19, 3, 8), from_module(model)

    def loss_of(parameters):
        inputs = source, numbers[:, :-1]
        logits = encoder_decoder(parameters, *inputs, model.config, generator=generator(3))
        return cross_entropy(logits, numbers[:, 1:])

    direction = tree_map(torch.cos, parameters)
    products = tree_map(torch.mul, grad(loss_of)(parameters), direction)
    slope = sum(product.sum() for product in flatten(products).values())
    ahead, behind = (
        loss_of(tree_map(lambda p, d, s=s: p + s * d, parameters, direction)) for s in (step, -step)
    )
    torch.testing.assert_close(slope, (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-6)


def test_a_curvature_is_the_slope_of_the_gradient(decoder, tokens):
    """Hessian times a direction, as the gradient of a gradient, against a small step."""
    model, numbers = decoder(), tokens(19, 3, 8)
    parameters, step = from_module(model), 1e-5
    slope = partial(grad(loss), tokens=numbers[:, :-1], targets=numbers[:, 1:], config=model.config)
    direction = tree_map(torch.cos, parameters)

    def along(parameters):
        products = tree_map(torch.mul, slope(parameters), direction)
        return sum(product.sum() for product in flatten(products).values())

    curvature = grad(along)(parameters)
    ahead, behind = (
        slope(tree_map(lambda p, d, s=s: p + s * d, parameters, direction)) for s in (step, -step)
    )
    expected = tree_map(lambda a, b: (a - b) / (2 * step), ahead, behind)
    for name, values in flatten(curvature).items():
        torch.testing.assert_close(values, flatten(expected)[name], rtol=1e-5, atol=1e-6)


def test_a_jacobian_says_which_tokens_a_logit_was_read_from(decoder, tokens):
    """By the vectors of the last token of the vocabulary, which stands at place 3 alone."""
    model = decoder(tie_embeddings=False)
    parameters, numbers = from_module(model), tokens(18, 7)
    numbers[3] = 18

    def logits(row):
        table = parameters["embedding"]["tokens"]["weight"].index_copy(0, torch.tensor([18]), row)
        own = parameters | {"embedding": {"tokens": {"weight": table}}}
        return decoder_only(own, numbers, model.config)

    row = parameters["embedding"]["tokens"]["weight"][18:]
    jacobian = jacrev(logits)(row)  # (length, vocab, 1, d_model)
    touched = (jacobian != 0).flatten(1).any(dim=1)
    assert touched.tolist() == [False] * 3 + [True] * 4


def test_a_tree_survives_the_way_through_a_module(translator):
    model, other = translator(), translator()
    parameters = tree_map(lambda p: p + 0.5, from_module(model))
    assert to_module(parameters, other) is other
    back = flatten(from_module(other))
    assert all(torch.equal(back[name], values) for name, values in flatten(parameters).items())


def test_a_tree_shares_no_memory_with_its_module(decoder):
    model = decoder()
    parameters = from_module(model)
    before = model.final_norm.gain.clone()
    parameters["final_norm"]["gain"].mul_(2)
    assert torch.equal(model.final_norm.gain, before)
    to_module(parameters, model)
    parameters["final_norm"]["gain"].mul_(2)
    torch.testing.assert_close(model.final_norm.gain, 2 * before)
    assert not any(p.requires_grad for p in flatten(parameters).values())


def test_the_initial_parameters_follow_the_generator():
    config = DecoderOnlyConfig(**SMALL)
    first, again, other = (flatten(init(config, generator(seed))) for seed in (3, 3, 4))
    name = "blocks.1.attention.query.weight"
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])


def test_a_step_changes_no_tensor_in_place(decoder, tokens):
    model, numbers = decoder(), tokens(19, 3, 8)
    parameters = from_module(model)
    before = tree_map(torch.clone, parameters)
    gradients = grad(loss)(parameters, numbers[:, :-1], numbers[:, 1:], model.config)
    sgd_step(parameters, gradients, 0.1)
    assert all(torch.equal(p, flatten(before)[n]) for n, p in flatten(parameters).items())


# Refusals


def test_a_sequence_that_is_too_long_is_refused(decoder, translator, tokens):
    model = decoder()
    with pytest.raises(ValueError, match="got length=12, max_len=11"):
        decoder_only(from_module(model), tokens(19, 12), model.config)
    model = translator()
    with pytest.raises(ValueError, match="got length=18, max_len=17"):
        encoder_decoder(from_module(model), tokens(23, 18), tokens(19, 2), model.config)


def test_a_rate_that_drops_everything_and_examples_without_a_rule_are_refused(decoder, tokens):
    with pytest.raises(ValueError, match="rate must be at least 0 and below 1, got rate=1"):
        dropout(torch.ones(3), 1.0, generator())
    model = decoder()
    pure = partial(decoder_only, from_module(model), config=model.config, generator=generator())
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(pure)(tokens(19, 3, 7))


def test_trees_that_do_not_fit_are_refused(decoder):
    model = decoder()
    parameters = from_module(model)
    wider = decoder(d_ff=17)
    with pytest.raises(ValueError, match=r"feed_forward.up.weight of shape \(17, 24\) for \(13"):
        to_module(from_module(wider), model)
    del parameters["final_norm"]
    with pytest.raises(ValueError, match="got one with final_norm.bias, final_norm.gain"):
        to_module(parameters, model)
    with pytest.raises(ValueError, match="trees must have the same names"):
        tree_map(torch.add, parameters, from_module(model))
