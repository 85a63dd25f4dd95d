"""Windows of connections that come and go: shares of a quota, told to those that are there."""

from collections.abc import Callable

from dcp.protocol.window_policies import SharedWindows, WindowPolicy, WindowPolicySettings

SHARED = WindowPolicySettings(
    WindowPolicy.AGGRESSIVE, size_bytes=100, most_bytes=400, aggressive_percent=100
)


class Sizes:
    """The windows of connections by name, as they were told."""

    def __init__(self, settings: WindowPolicySettings) -> None:
        self.now: dict[str, int] = {}
        self._windows = SharedWindows(settings, 1000)
        self._resize: dict[str, Callable[[int], None]] = {}

    def join(self, name: str) -> None:
        def resize(window_bytes: int) -> None:
            self.now[name] = window_bytes

        self._resize[name] = resize
        self.now[name] = self._windows.join(resize)

    def leave(self, name: str) -> None:
        del self.now[name]
        self._windows.leave(self._resize.pop(name))


def test_all_share_the_quota_between_the_least_and_the_most() -> None:
    sizes, names = Sizes(SHARED), "abcdefghijklmn"
    shares = [400, 400, 333, 250, 200, 166, 142, 125, 111, 100, 100, 100, 100, 100]
    for count, (name, share) in enumerate(zip(names, shares, strict=True), 1):
        sizes.join(name)
        assert sizes.now == dict.fromkeys(names[:count], share)
    for name, share in zip(names[:-1], reversed(shares[:-1]), strict=True):
        sizes.leave(name)
        assert set(sizes.now.values()) == {share}


def test_a_fixed_size_is_told_nobody_again() -> None:
    sizes = Sizes(WindowPolicySettings(WindowPolicy.STATIC, size_bytes=70))
    sizes.join("a")
    sizes.now["a"] = 0  # what it is told from here on is seen
    sizes.join("b")
    sizes.leave("b")
    assert sizes.now == {"a": 0}
