import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from groundup.core.attention import dot_scores
from groundup.variants.linear_attention import (
    chunked_linear_attention,
    parallel_linear_attention,
    positive_features,
    recurrent_linear_attention,
)


def output_of(attend):
    """Leave the state out."""
    return lambda *inputs: attend(*inputs)[0]


FORMS = {
    "parallel": parallel_linear_attention,
    "recurrent": output_of(recurrent_linear_attention),
    "chunked": output_of(partial(chunked_linear_attention, chunk_size=4)),
}
DECAYS = [1.0, 0.9, 0.3, torch.tensor([0.99, 0.5, 0.1], dtype=torch.float64)]


@pytest.fixture
def inputs(normal):
    """Every size differs: batch 2, heads 3, length 11, d_head 5, d_value 7."""
    return normal(2, 3, 11, 5), normal(2, 3, 11, 5), normal(2, 3, 11, 7)


# By hand


@pytest.mark.parametrize("form", FORMS)
def test_three_tokens_by_hand(form):
    """The third query scores 1, 2 and 1, which fade to 1/4, 1 and 1: (2, 0) + (0, 4) + (2, 2)."""
    query = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    key = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 1.0]])
    value = torch.tensor([[8.0, 0.0], [0.0, 4.0], [2.0, 2.0]])
    mixed = FORMS[form](query, key, value, 0.5)
    torch.testing.assert_close(mixed, torch.tensor([[8.0, 0.0], [4.0, 0.0], [4.0, 6.0]]))


def test_the_state_by_hand():
    """A quarter of the first outer product, half of the second and all of the third."""
    key = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 1.0]])
    value = torch.tensor([[8.0, 0.0], [0.0, 4.0], [2.0, 2.0]])
    _, state = recurrent_linear_attention(key, key, value, 0.5)
    assert state.tolist() == [[2.0, 0.0], [2.0, 6.0]]


def test_positive_features_by_hand():
    found = positive_features(torch.tensor([[-1.0, 0.0, 2.0]]))
    torch.testing.assert_close(found, torch.tensor([[math.exp(-1), 1.0, 3.0]]))


# Laws


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("form", ["recurrent", "chunked"])
def test_the_three_forms_agree_forward_and_backward(
    inputs, assert_equal_forward_and_backward, form, decay
):
    assert_equal_forward_and_backward(
        lambda *x: FORMS[form](*x, decay), lambda *x: FORMS["parallel"](*x, decay), *inputs
    )


@pytest.mark.parametrize("chunk_size", [1, 2, 5, 11, 64])
def test_the_size_of_a_chunk_changes_nothing(inputs, chunk_size):
    expected, expected_state = recurrent_linear_attention(*inputs, 0.7)
    found, state = chunked_linear_attention(*inputs, 0.7, chunk_size=chunk_size)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(state, expected_state)


@pytest.mark.parametrize("first", [recurrent_linear_attention, chunked_linear_attention])
@pytest.mark.parametrize("then", [recurrent_linear_attention, chunked_linear_attention])
def test_a_sequence_can_be_cut_where_one_likes(inputs, first, then):
    """The state is all that the later tokens need of the earlier ones."""
    expected, expected_state = recurrent_linear_attention(*inputs, 0.7)
    begun, state = first(*(x[..., :4, :] for x in inputs), 0.7)
    ended, state = then(*(x[..., 4:, :] for x in inputs), 0.7, state)
    torch.testing.assert_close(torch.cat((begun, ended), dim=-2), expected)
    torch.testing.assert_close(state, expected_state)


@pytest.mark.parametrize("form", FORMS)
def test_in_single_precision_the_forms_agree_to_five_digits(normal, form):
    """Positive features and a fading past: sums of 300 terms, none larger than a few units."""
    shapes = (2, 300, 8), (2, 300, 8), (2, 300, 5)
    query, key, value = (normal(*shape) / 3 for shape in shapes)
    exact = parallel_linear_attention(query, key, value, 0.95)
    found = FORMS[form](query.float(), key.float(), value.float(), 0.95)
    torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_an_appended_feature_of_ones_is_the_sum_of_the_weights(inputs, form):
    """Divided by it, outputs are the averages that a softmax's weights would take."""
    query, key, value = inputs
    query, key = positive_features(query), positive_features(key)
    mixed = FORMS[form](query, key, F.pad(value, (0, 1), value=1.0), 1.0)
    weights = dot_scores(query, key).tril()
    weights = weights / weights.sum(dim=-1, keepdim=True)
    torch.testing.assert_close(mixed[..., :-1] / mixed[..., -1:], weights @ value)


@pytest.mark.parametrize("form", FORMS)
def test_future_tokens_do_not_change_the_past(inputs, normal, form):
    query, key, value = (x.clone() for x in inputs)
    for x in (query, key, value):
        x[..., 6:, :] = normal(*x[..., 6:, :].shape)
    changed, before = FORMS[form](query, key, value, 0.9), FORMS[form](*inputs, 0.9)
    torch.testing.assert_close(changed[..., :6, :], before[..., :6, :])
    assert not torch.allclose(changed[..., 6:, :], before[..., 6:, :])


@pytest.mark.parametrize("form", FORMS)
def test_each_head_fades_at_its_own_rate(inputs, form):
    decay = torch.tensor([0.9, 0.5, 0.2], dtype=torch.float64)
    together = FORMS[form](*inputs, decay)
    for head in range(3):
        alone = FORMS[form](*(x[:, head] for x in inputs), decay[head].item())
        torch.testing.assert_close(together[:, head], alone)


@pytest.mark.parametrize("form", FORMS)
def test_a_long_past_and_a_fast_decay_give_no_nan(normal, form):
    inputs = [normal(2000, 3, dtype=torch.float32).requires_grad_() for _ in range(3)]
    mixed = FORMS[form](*inputs, 0.01)
    for gradient in torch.autograd.grad(mixed.sum(), inputs):
        assert gradient.isfinite().all()


def test_inputs_and_states_are_left_alone(inputs, normal):
    state = normal(2, 3, 5, 7)
    before = [x.clone() for x in (*inputs, state)]
    recurrent_linear_attention(*inputs, 0.9, state)
    chunked_linear_attention(*inputs, 0.9, state, chunk_size=4)
    assert all(torch.equal(x, y) for x, y in zip((*inputs, state), before, strict=True))


# Refusals


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("decay", [0.0, -0.5, 1.5, math.nan])
def test_a_decay_outside_its_range_is_refused(inputs, form, decay):
    with pytest.raises(ValueError, match="decay must be above 0 and at most 1, got decay="):
        FORMS[form](*inputs, decay)


def test_chunks_without_tokens_are_refused(inputs):
    with pytest.raises(ValueError, match="chunk_size must be at least 1, got chunk_size=0"):
        chunked_linear_attention(*inputs, chunk_size=0)
