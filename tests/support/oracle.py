"""What a filter must answer: it remembers items exactly, with the epochs in which each was written."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Oracle:
    """One shard; ``epoch``, ``oldest`` and the epochs that have a slice, ``made``, are told as they change."""

    retention: str
    window: int | None
    write: str | None = None
    expire_after: str | None = None
    epoch: int = 0
    oldest: int = 0
    made: list[int] = field(default_factory=lambda: [0])
    written: dict[object, set[int]] = field(default_factory=dict)
    forgotten: set[object] = field(default_factory=set)

    def turned(self, epoch: int, oldest: int, made: list[int] | None = None) -> None:
        """Take over how far the filter is, and check that nothing expires early."""
        assert epoch in {self.epoch, self.epoch + 1}
        first = max(0, epoch - self.window + 1) if self.window else 0
        assert self.oldest <= oldest <= first
        self.epoch, self.oldest, self.made = epoch, oldest, made or self.made
        expired = {item for item in self.forgotten if max(self.written[item]) < oldest}
        self.forgotten -= expired  # new anyway

    def age(self, item: object, max_age: int = 0) -> int:
        """Return how the item must be found."""
        epochs = {e for e in self.written.get(item, ()) if e >= self.oldest}
        if item in self.forgotten or not epochs:
            return 0
        live = [each for each in self.made if each >= self.oldest]
        looked_at = live[-max_age:][0]
        if self.write == "all":  # the slice that was opened then has all that was inserted since
            return int(looked_at in epochs)
        newest = max(epochs)
        if newest < looked_at:
            return 0
        age = sum(each >= newest for each in live)
        return min(age, 2) if self.retention == "rolling" else age

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
