"""The canonical JSON that digests are made of, however it is written, is RFC 8785's."""

from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from core.approvals import Undigestible, canonical

texts = st.text(st.characters(codec=None, categories=None))
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4))


@given(values)
def test_every_value_is_written_as_rfc_8785_says_or_refused_as_it_refuses(value: Any) -> None:
    """The fast way and the reference give the same bytes, and refuse the same values."""
    try:
        expected = rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeError):
        with pytest.raises(Undigestible):
            canonical(value)
    else:
        assert canonical(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        "".join(map(chr, range(0xD800))),
        {"b": 1, "a": 2, "\x7f": 3, "\x01": 4, "A": 5},
        {"\u20ac": 1, "\U0001f600": 2, "\ufb33": 3, "1": 4},
        [2**53 - 1, -(2**53 - 1), 1e21, 1.0, -0.0, 0.1],
        {"deep": [[[[{"a": [None, True, False]}]]]]},
    ],
)
def test_characters_keys_and_numbers_at_the_edges(value: Any) -> None:
    assert canonical(value) == rfc8785.dumps(value)


@pytest.mark.parametrize("value", [2**53, -(2**53), float("nan"), "\ud800", {"\udfff": 1}, {"a": {1}}, {1: 2}, b"x"])
def test_what_has_no_canonical_form_is_refused(value: Any) -> None:
    with pytest.raises(Undigestible):
        canonical(value)
