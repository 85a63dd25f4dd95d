"""Names that Spark takes for one, against the JVM that it runs on."""

from typing import TYPE_CHECKING, Final

import pytest

from dcp.lake.config.contracts import refusal_of, same_name_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FOLDED: Final = (
    """
SELECT id, CAST(reflect('java.lang.Character', 'toLowerCase',
                        CAST(reflect('java.lang.Character', 'toUpperCase', CAST(id AS INT)) AS INT)
                       ) AS INT) AS folded,
       lower(reflect('java.lang.Character', 'toString', CAST(id AS INT))) AS lower
FROM range(0x110000)
WHERE id NOT BETWEEN 0xD800 AND 0xDFFF
  AND reflect('java.lang.Character', 'isDefined', CAST(id AS INT)) = 'true'
""".replace("0x110000", str(0x110000))
    .replace("0xD800", "55296")
    .replace("0xDFFF", "57343")
)


def test_names_are_the_same_as_java_says_for_every_character(spark: "SparkSession") -> None:
    """Both by ``equalsIgnoreCase``, which folds characters, and by ``toLowerCase``."""
    found = spark.sql(_FOLDED).toArrow().to_pydict()
    assert len(found["id"]) > 200_000
    for code, folded, lower in zip(found["id"], found["folded"], found["lower"], strict=True):
        key = same_name_key(chr(code))
        assert key == chr(folded), hex(code)
        assert key == same_name_key(lower), hex(code)


def test_final_sigmas_are_the_same() -> None:
    assert (
        len({same_name_key(name) for name in ("\u039f\u03a3", "\u03bf\u03c2", "\u03bf\u03c3")}) == 1
    )


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("", "the name is empty"),
        ("a b", "the name has ' ', which no column's name has"),
        ("a=b", "the name has '=', which no column's name has"),
        ("a\x00", "the name has a control character"),
        ("a\n", "the name has a control character"),
        ("a\x7f", "the name has a control character"),
        ("a\x85", "the name has a control character"),
        ("unit\u00a0price", None),
        ("soft\u00adhyphen", None),
        ("a.b/c`d", None),
    ],
)
def test_names_that_no_column_has(name: str, refusal: str | None) -> None:
    assert refusal_of(name) == refusal
