"""Tells whose bucket a lake holds, and refuses any other one."""

from dataclasses import dataclass

from dcp.errors import LakeError


@dataclass(frozen=True, slots=True)
class LakeIdentity:
    """The bucket that a lake holds; fixed when the lake is made."""

    lake_id: str
    bucket: str
    bucket_uuid: str
    vbucket_count: int
    cluster_uuid: str = ""
    """Empty if the server did not tell it then, as before 7.6."""

    def difference(self, other: "LakeIdentity") -> str:
        """Return the first of these names in which another bucket differs; empty: it is the same.

        A cluster that only one of both knows makes no difference.
        """
        for name in ("bucket", "cluster_uuid", "bucket_uuid", "vbucket_count"):
            one, two = getattr(self, name), getattr(other, name)
            if one != two and (name != "cluster_uuid" or (one and two)):
                return name
        return ""

    def require_same(self, found: "LakeIdentity", where: str) -> None:
        """Refuse another bucket than this one.

        Raises:
            LakeError: name or cluster differ; or the bucket was made anew, by its uuid or its
                number of vbuckets. The message begins with ``where``.
        """
        match self.difference(found):
            case "":
                return
            case "bucket":
                told = (
                    f", found {found.bucket!r} (source.bucket): name the lake's bucket, or use "
                    "another lake (lake.root, --lake)"
                )
            case "cluster_uuid":
                told = (
                    f" of the cluster with uuid {self.cluster_uuid!r}, found the cluster with uuid "
                    f"{found.cluster_uuid!r}; it is another one: check source.seeds, or use "
                    "another lake for it"
                )
            case _:
                told = (
                    f" with uuid {self.bucket_uuid!r} and {self.vbucket_count} vbuckets, found "
                    f"uuid {found.bucket_uuid!r} and {found.vbucket_count}; it was made anew, use "
                    "another lake for it"
                )
        raise LakeError(f"{where}: this lake holds bucket {self.bucket!r}{told}")
