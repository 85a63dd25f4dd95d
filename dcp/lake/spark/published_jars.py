"""Names the jars that dcplake downloads, and the checksum of the only file accepted for each."""

from dataclasses import dataclass
from typing import Final

DELTA_VERSION: Final = "4.4.0"


@dataclass(frozen=True, slots=True)
class Jar:
    group: str
    name: str
    """The artifact with its version."""
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.name}.jar"

    @property
    def download_name(self) -> str:
        """Ivy's name for the file."""
        return f"{self.group}_{self.file_name}"


@dataclass(frozen=True, slots=True)
class JarSet:
    title: str
    packages: tuple[str, ...]
    """Maven's names of the packages."""
    excluded: tuple[str, ...]
    megabytes: int
    jars: tuple[Jar, ...]


# Everything else in Delta's dependency tree is either in pyspark already, newer (Hadoop, Parquet,
# Jackson, slf4j, RoaringBitmap: a second copy of them on the class path is trouble), or belongs to
# Unity Catalog, which nothing here uses.
DELTA: Final = JarSet(
    "Delta jars",
    (f"io.delta:delta-spark_4.2_2.13:{DELTA_VERSION}",),
    (
        "org.apache.hadoop:*",
        "org.apache.parquet:*",
        "com.fasterxml.jackson.core:*",
        "com.fasterxml.jackson.datatype:*",
        "org.slf4j:*",
        "org.roaringbitmap:*",
        "com.google.code.findbugs:*",
        "io.unitycatalog:*",
        "org.apache.logging.log4j:*",
        "org.locationtech.jts:*",
        "io.delta:delta-kernel-unitycatalog",
    ),
    12,
    (
        Jar(
            "io.delta",
            f"delta-spark_4.2_2.13-{DELTA_VERSION}",
            "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
        ),
        Jar(
            "io.delta",
            f"delta-storage-{DELTA_VERSION}",
            "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
        ),
        Jar(
            "io.delta",
            f"delta-kernel-api-{DELTA_VERSION}",
            "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
        ),
        Jar(
            "io.delta",
            f"delta-kernel-defaults-{DELTA_VERSION}",
            "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
        ),
    ),
)

# Hadoop's connector, and the parts of the AWS SDK that it uses (sts for web identities and roles).
# By itself it asks for all of the SDK in one jar (`bundle`, 690 MB). Spark has the rest of what is
# left out.
S3: Final = JarSet(
    "S3 jars",
    (
        "org.apache.hadoop:hadoop-aws:3.5.0",
        "software.amazon.awssdk:s3:2.35.4",
        "software.amazon.awssdk:sts:2.35.4",
        "software.amazon.awssdk:s3-transfer-manager:2.35.4",
    ),
    (
        "software.amazon.awssdk:bundle",
        "io.netty:*",
        "org.slf4j:*",
        "commons-codec:*",
        "commons-logging:*",
        "org.apache.httpcomponents:*",
    ),
    13,
    (
        Jar(
            "org.apache.hadoop",
            "hadoop-aws-3.5.0",
            "66bd9eefb938b1a1657487324b63c13df2d8b17164a1dd24e0ef37b905bc5baa",
        ),
        Jar(
            "org.reactivestreams",
            "reactive-streams-1.0.4",
            "f75ca597789b3dac58f61857b9ac2e1034a68fa672db35055a8fb4509e325f28",
        ),
        Jar(
            "org.wildfly.openssl",
            "wildfly-openssl-2.2.5.Final",
            "71fb7932f99a727edb23c5a2cb8c6855ac7196fad41aa0669b3998e277165154",
        ),
        Jar(
            "software.amazon.awssdk",
            "annotations-2.35.4",
            "6f36bd87155d1dd85d6efbdd29e532e3759a022211feb71affebee1aa34f04b8",
        ),
        Jar(
            "software.amazon.awssdk",
            "apache-client-2.35.4",
            "6eade21b482724ed0a4613eaa95d20e47e7a81304bd28538ac427fece94a7740",
        ),
        Jar(
            "software.amazon.awssdk",
            "arns-2.35.4",
            "c63cc29f76a8527e9e10b621703163df541dc5cb315508dc2898518602c75380",
        ),
        Jar(
            "software.amazon.awssdk",
            "auth-2.35.4",
            "6b601323004833fb4a857ffc95db4795e0e6320eb93e64b1246c655c9ff04994",
        ),
        Jar(
            "software.amazon.awssdk",
            "aws-core-2.35.4",
            "fdb5fc8f1a48d97fa7d04d3460fb42f6973c7b1bbe1b9d317871ef0162bcb623",
        ),
        Jar(
            "software.amazon.awssdk",
            "aws-query-protocol-2.35.4",
            "9b4cf9b78977cc9f5b4ceae9c435dedbde6a055a0f8d9e053eaca945715e2a9f",
        ),
        Jar(
            "software.amazon.awssdk",
            "aws-xml-protocol-2.35.4",
            "4f59176da2522c357b1993e4a890fde529f12f365795ef86269bde4a3984cd0d",
        ),
        Jar(
            "software.amazon.awssdk",
            "checksums-2.35.4",
            "94464af4374d08ecf33ca06ed4d03e1615529e547726e26b56abacefbeee7948",
        ),
        Jar(
            "software.amazon.awssdk",
            "checksums-spi-2.35.4",
            "88b5af85ac2d3c862be8856be4e683ab31932e4a5a3c1c45af864d2671ac7cec",
        ),
        Jar(
            "software.amazon.awssdk",
            "crt-core-2.35.4",
            "2c6aaa17bf9ccbb9d962dded4351e73decb197e3c5519970e0dae17e05d3df62",
        ),
        Jar(
            "software.amazon.awssdk",
            "endpoints-spi-2.35.4",
            "ef02441bda916959b8341290b49c68cc35538e1ad6f8629b75d8334dc6653e00",
        ),
        Jar(
            "software.amazon.awssdk",
            "http-auth-2.35.4",
            "3ec933a06e751a05e195eb3589209e23c44e1897263b6fcae34ef4cc63cd4491",
        ),
        Jar(
            "software.amazon.awssdk",
            "http-auth-aws-2.35.4",
            "c4acb92fdec90bfd9b67bfab8e41b69cd152c03cacc10281a8ab464791856e01",
        ),
        Jar(
            "software.amazon.awssdk",
            "http-auth-aws-eventstream-2.35.4",
            "709107552f302be3fa9e05969a3779f5c0f07fb809e6fa1fa571a6f0c61326dd",
        ),
        Jar(
            "software.amazon.awssdk",
            "http-auth-spi-2.35.4",
            "4495463406bb98eb136f2c3f3604ed5f08ec9974ebc3f34f2121b20679f61d5c",
        ),
        Jar(
            "software.amazon.awssdk",
            "http-client-spi-2.35.4",
            "728be89b2a07b595edb0adee3a2cbbbdd4cb1f4caddde0d08c3979fe2620dedb",
        ),
        Jar(
            "software.amazon.awssdk",
            "identity-spi-2.35.4",
            "188d73db7d4e2361654bc3c5a1b3eaeb445d0500fb012cc46c5d67975adf97bf",
        ),
        Jar(
            "software.amazon.awssdk",
            "json-utils-2.35.4",
            "80d67a6bb3e7eb49c7d4b6e4ba4c1463ed7da0192b795158328602dc131c5ecc",
        ),
        Jar(
            "software.amazon.awssdk",
            "metrics-spi-2.35.4",
            "c2a4ee90a21081317e2e6eba0c414d05d3d518aed2f86b1c1710a7367b450487",
        ),
        Jar(
            "software.amazon.awssdk",
            "netty-nio-client-2.35.4",
            "b82f8b33e5c85273a47da45ede884d7ccb31c9c2f69e6910a76c5c48fa1275dc",
        ),
        Jar(
            "software.amazon.awssdk",
            "profiles-2.35.4",
            "0f4ef7ca72ccd80dd49ebeaf7f3ce60a7d7a00da59a91aeeae6e91052bbacbd8",
        ),
        Jar(
            "software.amazon.awssdk",
            "protocol-core-2.35.4",
            "f2532eca6ba2142fe4821d5decb03c83a3e15dc8bfae2240e7f2efa75f9868b5",
        ),
        Jar(
            "software.amazon.awssdk",
            "regions-2.35.4",
            "77eae87b34ce96ecdf916a9bc06684dbeafcb6d38ef0513285fa5d5d6d41f5ca",
        ),
        Jar(
            "software.amazon.awssdk",
            "retries-2.35.4",
            "f99fb2f8c66d7e859955b3542d3af8f9de8f23a21d5e3250f0f2c5f18487e469",
        ),
        Jar(
            "software.amazon.awssdk",
            "retries-spi-2.35.4",
            "668638751d059c527ddd41ffa4dcebe36a7c14860ed56776df09b861c14dc7dd",
        ),
        Jar(
            "software.amazon.awssdk",
            "s3-2.35.4",
            "f23532c5223be9b0bfec0d72837ed09ed34dbdf8022818ba145b20076a78b4bc",
        ),
        Jar(
            "software.amazon.awssdk",
            "s3-transfer-manager-2.35.4",
            "0eec78870b3d0abc509a847072cf963cb2ae6e360dc6161a9449b3398c470476",
        ),
        Jar(
            "software.amazon.awssdk",
            "sdk-core-2.35.4",
            "fa559a4ce598852f3519c8f3b36250f583b0858a7611eedc4a81997778c617f4",
        ),
        Jar(
            "software.amazon.awssdk",
            "sts-2.35.4",
            "8d0f7816d3f96e3f00249f5d054d926e939a104bcf9ef57676ee0b16c59684d2",
        ),
        Jar(
            "software.amazon.awssdk",
            "third-party-jackson-core-2.35.4",
            "32f4252c6c2df8f3a4aff885e6dc77024ad6b4cb48455d07b461ec30c41643ea",
        ),
        Jar(
            "software.amazon.awssdk",
            "utils-2.35.4",
            "642aeef536a071668f0b772f05f9d21573abf6955e7b6fb5fdb893760cca10e8",
        ),
        Jar(
            "software.amazon.awssdk",
            "utils-lite-2.35.4",
            "e004806def5e22ec98edc48a133ff3317166255e1ba29d93d129e9fdfa64a7be",
        ),
        Jar(
            "software.amazon.eventstream",
            "eventstream-1.0.1",
            "0c37d8e696117f02c302191b8110b0d0eb20fa412fce34c3a269ec73c16ce822",
        ),
        Jar(
            "software.amazon.s3.analyticsaccelerator",
            "analyticsaccelerator-s3-1.3.1",
            "4959a9747cbb479c73c3ffbcd479bee5b014f8b2880994585a8693fb9d24675e",
        ),
    ),
)
