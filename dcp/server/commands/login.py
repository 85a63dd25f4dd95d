"""The negotiation of a client before it gets data: features, its user, its bucket."""

from dcp.server.bucket.auth import SaslConversation, UserStore


class Login:
    """A connection's; ``sasl`` carries on the authentication."""

    def __init__(self, users: UserStore) -> None:
        self._users = users
        self.features: frozenset[int] = frozenset()
        self.user: str | None = None
        self.has_bucket = False
        self.has_certificate = False
        """True if a certificate says who the client is: then SASL is off."""
        self.sasl = SaslConversation(users)

    def grant(self, features: frozenset[int]) -> None:
        """Have these features of HELLO, and no others."""
        self.features = features

    def begin_authentication(self) -> None:
        """Reset user and bucket: an earlier authentication is void."""
        self.user, self.has_bucket = None, False

    def authenticated(self, user: str) -> None:
        """Be this user."""
        self.user = user

    def take_certificate(self, name: str) -> bool:
        """Be the user that a certificate names, for good; return whether there is such a user."""
        self.user = self._users.certified(name)
        self.has_certificate = self.user is not None
        return self.has_certificate

    def select_bucket(self, *, is_there: bool) -> None:
        """Have the bucket, or none where the client named another one."""
        self.has_bucket = is_there
