from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_specrl.cluster.nodelist import expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n", ["n"]),
        ("gpu1.cluster.local", ["gpu1.cluster.local"]),
        ("linux[1,2]", ["linux1", "linux2"]),
        ("c[1-2]", ["c1", "c2"]),
        ("nodeA,nodeB[001,003],nodeC", ["nodeA", "nodeB001", "nodeB003", "nodeC"]),
        (
            "ml-16-node-[001-002,004],ml-17-node-[001-003]",
            [*(f"ml-16-node-{n}" for n in ("001", "002", "004")), *(f"ml-17-node-{n}" for n in ("001", "002", "003"))],
        ),
        ("b1u01n1,b2u[05,02]n3,b3u03n4", ["b1u01n1", "b2u05n3", "b2u02n3", "b3u03n4"]),
        ("node[01-04,07]", ["node01", "node02", "node03", "node04", "node07"]),
        ("node[098-102]", ["node098", "node099", "node100", "node101", "node102"]),
        ("node[9-11]", ["node9", "node10", "node11"]),
        ("gpu[1-2].cluster.local", ["gpu1.cluster.local", "gpu2.cluster.local"]),
        ("rack[0-1]_n[1-2]", ["rack0_n1", "rack0_n2", "rack1_n1", "rack1_n2"]),
        ("a[1][2]", ["a12"]),
        ("a, b[1-2]", ["a", "b1", "b2"]),
        ("[1-2]", ["1", "2"]),
    ],
)
def test_valid_lists_keep_order_and_padding(text, names):
    assert expand(text) == names


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "a,", ",a", "a,,b", "node[01", "node01]", "node[]", "node[01,]", "node[,01]", "node[[01]]"),
        *("node[3-1]", "node[a-b]", "node[1-]", "node[-1]", "node[1-2-3]", "node 1", "node[1 -2]", "a;b", "$(id)"),
        *("node[001-02]", "n[0-99999999999]", "n[0-999][0-999]", "a\nb", "][", "node[1],[", "ν1"),
    ],
)
def test_malformed_lists_are_errors_that_quote_the_list(text):
    with pytest.raises(ValueError, match="malformed node list"):
        expand(text)


@given(st.integers(0, 500), st.integers(0, 40), st.integers(1, 5))
def test_a_range_is_what_it_abbreviates(first, count, width):
    names = [f"n{number:0{width}d}" for number in range(first, first + count + 1)]
    assert expand(f"n[{names[0][1:]}-{names[-1][1:]}]") == names
    assert expand(",".join(names)) == names
