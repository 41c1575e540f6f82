"""core.bucket_sizes: sizes, and what is refused."""

import pytest

from gfxgraph.core.bucket_sizes import Buckets
from gfxgraph.errors import ConfigError


def test_sizes_are_kept_ascending_and_once():
    """The order given does not matter."""
    assert Buckets((8, 2, 8, 4)).sizes == (2, 4, 8)


@pytest.mark.parametrize("sizes", [(), (0,), (-4,), (True,), (2.5,), ("8",)])
def test_a_size_that_is_no_size_is_refused(sizes):
    """At once, with the value shown."""
    with pytest.raises(ConfigError) as caught:
        Buckets(sizes)
    assert caught.value.code == "bad_buckets"
    assert repr(sizes[0] if sizes else ()) in str(caught.value)
