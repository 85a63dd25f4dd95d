"""Documents of kinds that people keep in Couchbase, with what becomes of them. Bytes matter."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final


@dataclass(frozen=True)
class Known:
    """Some documents of a kind.

    ``columns`` is the contract that ``schema infer`` proposes for them, ``docs`` what their typed
    columns hold by it.
    """

    texts: tuple[str, ...]
    columns: Mapping[str, str]
    docs: tuple[Mapping[str, Any], ...]


DIGITS: Final = "1234567890" * 120


def _feature(box: list[float] | None, kind: str, *coordinates: str) -> dict[str, Any]:
    geometry = {"type": kind, "coordinates": list(coordinates), "geometries": None}
    return {"type": "Feature", "geometry": geometry, "bbox": box}


KNOWN: Final[dict[str, Known]] = {
    "GeoJSON of several depths": Known(
        (
            '{"type": "Feature", "geometry": {"type": "Point", "coordinates": [125.6, 10.10]}}',
            '{"type":"Feature","geometry":{"type":"LineString","coordinates":[[102,0.0],[103,1]]}}',
            '{"type":"Feature","geometry":{"type":"Polygon","coordinates":[[[1,2],[3,4],[1,2]]]}}',
            '{"type":"Feature","geometry":{"type":"MultiPolygon","coordinates":[[[[0,1.50]]]]},'
            ' "bbox": [-10.0, -10, 10, 1e1]}',
            '{"type":"Feature","geometry":{"type":"GeometryCollection","geometries":'
            '[{"type":"Point","coordinates":[0,0]}]}}',
        ),
        {
            "$.type": "string",
            "$.geometry.type": "string",
            "$.geometry.coordinates[*]": "string",  # numbers and lists of several depths
            "$.geometry.geometries[*].type": "string",
            "$.geometry.geometries[*].coordinates[*]": "bigint",
            "$.bbox[*]": "double",
        },
        (
            _feature(None, "Point", "125.6", "10.10"),
            _feature(None, "LineString", "[102,0.0]", "[103,1]"),
            _feature(None, "Polygon", "[[1,2],[3,4],[1,2]]"),
            _feature([-10.0, -10.0, 10.0, 10.0], "MultiPolygon", "[[[0,1.50]]]"),
            {
                "type": "Feature",
                "geometry": {
                    "type": "GeometryCollection",
                    "coordinates": None,
                    "geometries": [{"type": "Point", "coordinates": [0, 0]}],
                },
                "bbox": None,
            },
        ),
    ),
    "FHIR": Known(
        (
            '{"resourceType":"Patient","id":"f001","active":true,"birthDate":"1944-11-17",'
            '"_birthDate":{"extension":[{"url":"http://hl7.org/fhir/x","valueDateTime":'
            '"1944-11-17T14:35:45-05:00"}]},"name":[{"use":"official","family":"van de Heuvel",'
            '"given":["Pieter","J."]},{"use":"usual","given":["Pé"]}],"multipleBirthInteger":2}',
            '{"resourceType":"Observation","id":"f002","valueQuantity":{"value":6.30,'
            '"unit":"mmol/l"},"referenceRange":[{"low":{"value":3.1},"high":{"value":6.20}}],'
            '"issued":"2013-04-03T15:30:10.123+01:00","contained":[]}',
        ),
        {
            "$.resourceType": "string",
            "$.id": "string",
            "$.active": "boolean",
            "$.birthDate": "date",
            "$._birthDate.extension[*].url": "string",
            "$._birthDate.extension[*].valueDateTime": "timestamp",
            "$.name[*].use": "string",
            "$.name[*].family": "string",
            "$.name[*].given[*]": "string",
            "$.multipleBirthInteger": "bigint",
            "$.valueQuantity.value": "double",
            "$.valueQuantity.unit": "string",
            "$.referenceRange[*].low.value": "double",
            "$.referenceRange[*].high.value": "double",
            "$.issued": "timestamp",
            "$.contained": "string",
        },
        (
            {
                "resourceType": "Patient",
                "id": "f001",
                "active": True,
                "birthDate": date(1944, 11, 17),
                "_birthDate": {
                    "extension": [
                        {
                            "url": "http://hl7.org/fhir/x",
                            "valueDateTime": datetime(1944, 11, 17, 19, 35, 45, tzinfo=UTC),
                        }
                    ]
                },
                "name": [
                    {"use": "official", "family": "van de Heuvel", "given": ["Pieter", "J."]},
                    {"use": "usual", "family": None, "given": ["Pé"]},
                ],
                "multipleBirthInteger": 2,
                "valueQuantity": None,
                "referenceRange": None,
                "issued": None,
                "contained": None,
            },
            {
                "resourceType": "Observation",
                "id": "f002",
                "active": None,
                "birthDate": None,
                "_birthDate": None,
                "name": None,
                "multipleBirthInteger": None,
                "valueQuantity": {"value": 6.3, "unit": "mmol/l"},
                "referenceRange": [{"low": {"value": 3.1}, "high": {"value": 6.2}}],
                "issued": datetime(2013, 4, 3, 14, 30, 10, 123_000, tzinfo=UTC),
                "contained": "[]",
            },
        ),
    ),
    "tweets": Known(
        (
            '{"id":18446744073709551616,"id_str":"18446744073709551616",'
            '"text":"\\ud83d\\ude00 caf\\u00e9 \U0001f600",'
            '"entities":{"hashtags":[{"text":"x","indices":[0,2]}],"urls":[]},'
            '"retweeted_status":null,"created_at":"Wed Oct 10 20:19:24 +0000 2018","lang":"null"}',
            '{"id":99999999999999999999999999999999999999,"id_str":"1","text":"","entities":'
            '{"hashtags":[],"urls":[]},"retweeted_status":{"id":18446744073709551617}}',
        ),
        {
            "$.id": "decimal(38,0)",
            "$.id_str": "decimal(38,0)",
            "$.text": "string",
            "$.entities.hashtags[*].text": "string",
            "$.entities.hashtags[*].indices[*]": "bigint",
            "$.entities.urls": "string",
            "$.retweeted_status.id": "decimal(38,0)",
            "$.created_at": "string",
            "$.lang": "string",
        },
        (
            {
                "id": Decimal(2**64),
                "id_str": Decimal(2**64),
                "text": "😀 café 😀",
                "entities": {"hashtags": [{"text": "x", "indices": [0, 2]}], "urls": "[]"},
                "retweeted_status": None,
                "created_at": "Wed Oct 10 20:19:24 +0000 2018",
                "lang": "null",
            },
            {
                "id": Decimal("9" * 38),
                "id_str": Decimal(1),
                "text": "",
                "entities": {"hashtags": [], "urls": "[]"},
                "retweeted_status": {"id": Decimal(2**64 + 1)},
                "created_at": None,
                "lang": None,
            },
        ),
    ),
    "texts that say null": Known(
        (
            '{"a":"null","b":null,"c":"NULL","d":"","e":["null",null],"f":{"g":"null"}}',
            '{"a":null,"b":"null","c":"None","d":"NaN","e":[],"f":null}',
        ),
        {
            "$.a": "string",
            "$.b": "string",
            "$.c": "string",
            "$.d": "string",
            "$.e[*]": "string",
            "$.f.g": "string",
        },
        (
            {
                "a": "null",
                "b": None,
                "c": "NULL",
                "d": "",
                "e": ["null", None],
                "f": {"g": "null"},
            },
            {"a": None, "b": "null", "c": "None", "d": "NaN", "e": [], "f": None},
        ),
    ),
    "extended JSON": Known(
        (
            '{"_id":{"$oid":"5d505646cf6d4fe581014ab2"},"n":{"$numberLong":"9223372036854775807"},'
            '"price":{"$numberDecimal":"0.10"},"at":{"$date":{"$numberLong":"-1"}},'
            '"was":{"$date":"2019-08-11T17:54:14.692Z"},"raw":{"$binary":{"base64":"/w==",'
            '"subType":"00"}},"re":{"$regularExpression":{"pattern":"^a\\\\.b","options":"i"}}}',
        ),
        {
            "$._id.$oid": "string",
            "$.n.$numberLong": "decimal(38,0)",
            "$.price.$numberDecimal": "decimal(38,1)",
            "$.at.$date.$numberLong": "decimal(38,0)",
            "$.was.$date": "timestamp",
            "$.raw.$binary.base64": "string",
            "$.raw.$binary.subType": "string",
            "$.re.$regularExpression.pattern": "string",
            "$.re.$regularExpression.options": "string",
        },
        (
            {
                "_id": {"$oid": "5d505646cf6d4fe581014ab2"},
                "n": {"$numberLong": Decimal(2**63 - 1)},
                "price": {"$numberDecimal": Decimal("0.1")},
                "at": {"$date": {"$numberLong": Decimal(-1)}},
                "was": {"$date": datetime(2019, 8, 11, 17, 54, 14, 692_000, tzinfo=UTC)},
                "raw": {"$binary": {"base64": "/w==", "subType": "00"}},
                "re": {"$regularExpression": {"pattern": r"^a\.b", "options": "i"}},
            },
        ),
    ),
    "names of any characters": Known(
        (
            '{"a.b":1,"a":{"b":2,"c.d":{"e/f":3}},"a/b":4,"a`b":5,"``":6,"/":7,".":8,"$ref":"x",'
            '"a[0]":9,"*":10,"s":{"*":1,"[*]":2},"a-b":11,"a:b":12,"@id":"y","~0":13}',
        ),
        {
            "$['a.b']": "bigint",
            "$.a.b": "bigint",
            "$.a['c.d'].e/f": "bigint",
            "$.a/b": "bigint",
            "$['a`b']": "bigint",
            "$['``']": "bigint",
            "$./": "bigint",
            "$['.']": "bigint",
            "$.$ref": "string",
            "$['a[0]']": "bigint",
            "$['*']": "bigint",
            "$.s['*']": "bigint",
            "$.s['[*]']": "bigint",
            "$.a-b": "bigint",
            "$.a:b": "bigint",
            "$.@id": "string",
            "$.~0": "bigint",
        },
        (
            {
                "a.b": 1,
                "a": {"b": 2, "c.d": {"e/f": 3}},
                "a/b": 4,
                "a`b": 5,
                "``": 6,
                "/": 7,
                ".": 8,
                "$ref": "x",
                "a[0]": 9,
                "*": 10,
                "s": {"*": 1, "[*]": 2},
                "a-b": 11,
                "a:b": 12,
                "@id": "y",
                "~0": 13,
            },
        ),
    ),
    "numbers of 1,200 digits": Known(
        (
            f'{{"whole":{DIGITS},"below":-{DIGITS},"fraction":0.{DIGITS},"some":[1,{DIGITS}],'
            f'"text":"{DIGITS}","power":1e1200}}',
        ),
        {
            "$.whole": "string",
            "$.below": "string",
            "$.fraction": "double",
            "$.some[*]": "string",
            "$.text": "string",
            "$.power": "string",
        },
        (
            {
                "whole": DIGITS,
                "below": f"-{DIGITS}",
                "fraction": 0.12345678901234568,
                "some": ["1", DIGITS],
                "text": DIGITS,
                "power": "1e1200",
            },
        ),
    ),
}
