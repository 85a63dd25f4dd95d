from dcp.server.bucket.auth import SaslConversation, UserStore


class Login:
    """Features, user and bucket of one client, negotiated before it gets data."""

    def __init__(self, users: UserStore) -> None:
        self._users = users
        self.features: frozenset[int] = frozenset()
        self.user: str | None = None
        self.has_bucket = False
        self.has_certificate = False
        """True if a client certificate names the user; SASL is refused then."""
        self.sasl = SaslConversation(users)

    def grant(self, features: frozenset[int]) -> None:
        self.features = features

    def begin_authentication(self) -> None:
        """Reset user and bucket: an earlier authentication is void."""
        self.user, self.has_bucket = None, False

    def authenticated(self, user: str) -> None:
        self.user = user

    def take_certificate(self, name: str) -> bool:
        """Become the user that a certificate names; return False if no such user exists."""
        self.user = self._users.certified(name)
        self.has_certificate = self.user is not None
        return self.has_certificate

    def select_bucket(self, *, is_there: bool) -> None:
        self.has_bucket = is_there
