"""What a filter must answer: it remembers items exactly, with the epochs in which each was written."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Oracle:
    """One shard; ``epoch`` and ``oldest`` are told from outside as they change."""

    retention: str
    window: int | None
    write: str | None = None
    expire_after: str | None = None
    epoch: int = 0
    oldest: int = 0
    written: dict[object, set[int]] = field(default_factory=dict)
    forgotten: set[object] = field(default_factory=set)

    def turned(self, epoch: int, oldest: int) -> None:
        """Take over how far the filter is, and check that nothing expires early."""
        assert epoch in {self.epoch, self.epoch + 1}
        first = max(0, epoch - self.window + 1) if self.window else 0
        assert self.oldest <= oldest <= first
        self.epoch, self.oldest = epoch, oldest
        expired = {item for item in self.forgotten if max(self.written[item]) < oldest}
        self.forgotten -= expired  # new anyway

    def age(self, item: object, max_age: int = 0) -> int:
        """Return how the item must be found."""
        epochs = {e for e in self.written.get(item, ()) if e >= self.oldest}
        if item in self.forgotten or not epochs:
            return 0
        looked_at = max(self.oldest, self.epoch - max_age + 1) if max_age else self.oldest
        if self.write == "all":  # the slice that was opened then has all that was inserted since
            return int(looked_at in epochs)
        newest = max(epochs)
        if newest < looked_at:
            return 0
        return min(self.epoch - newest + 1, 2) if self.retention == "rolling" else self.epoch - newest + 1

    def insert(self, item: object, max_age: int = 0) -> int:
        age = self.age(item, max_age)
        if age == 0 or self.expire_after == "last-seen":
            first = self.oldest if self.write == "all" else self.epoch
            self.written.setdefault(item, set()).update(range(first, self.epoch + 1))
        if age == 0:
            self.forgotten.discard(item)
        return age

    def forget(self, item: object) -> int:
        there = int(self.age(item) > 0)
        if there:
            self.forgotten.add(item)
        return there
