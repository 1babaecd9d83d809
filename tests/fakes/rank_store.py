"""Where ranks leave words for each other, without ranks."""


class RankStore:
    """As torch's stores are, and as they stay when ranks are started again."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def compare_set(self, key: str, expected: str, wanted: str) -> bytes:
        if self.values.get(key, "") == expected:
            self.values[key] = wanted
        return self.values[key].encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def get(self, key: str) -> bytes:
        return self.values[key].encode()
