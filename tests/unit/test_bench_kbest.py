"""K-best: when tries agree, what is told if they do not, and that contestants take turns."""

from __future__ import annotations

import random

import pytest

from bench.kbest import Rule, best_of, race

RULE = Rule(k=3, tolerance=0.02, tries=200)


def noisy(truth: float, seed: int):
    """A source of times as of a busy machine: never less than the truth, mostly a little more, sometimes much."""
    dice = random.Random(seed)
    return lambda: truth * (1 + dice.expovariate(10) + (dice.random() < 0.2) * 5 * dice.random())


@pytest.mark.parametrize("seed", range(5))
def test_it_converges(seed):
    """The fastest tries of a noisy source agree before the tries are used up, and near the truth."""
    found = race({"a": noisy(10, seed)}, float, RULE, random.Random(1))["a"]
    best = best_of(found, RULE)
    assert best.converged
    assert best.tries == len(found) < RULE.tries
    assert best.spread <= RULE.tolerance
    assert 10 <= best.value <= 10.5
    assert best.value == min(found)
    assert not best_of(found[:-1], RULE).converged  # it stopped as soon as they agreed


def test_it_says_that_it_does_not_converge():
    """A source that gets faster by a tenth each time is tried to the end, and said to be undecided, with its spread."""
    times = iter([1000 * 0.9**n for n in range(1000)])
    found = race({"a": lambda: next(times)}, float, RULE, random.Random(1))["a"]
    best = best_of(found, RULE)
    assert (best.converged, best.tries) == (False, RULE.tries)
    assert best.value == found[-1]
    assert best.spread == pytest.approx(1 / 0.81 - 1)


def test_too_few_tries_do_not_agree():
    """Equal tries, but fewer than k; with one more they agree. Times of 0 agree with one another only."""
    assert not best_of([1.0, 1.0], RULE).converged
    assert best_of([1.0, 1.0, 1.0], RULE).converged
    assert best_of([0.0, 0.0, 0.0], RULE).converged
    assert not best_of([0.0, 1.0, 1.0], RULE).converged


def test_no_measurement():
    """No tries, and a time below 0, are refused."""
    for values in ([], [-1.0, 1.0]):
        with pytest.raises(ValueError, match="tries of 0 and more"):
            best_of(values, RULE)


@pytest.mark.parametrize("wrong", [{"k": 1}, {"k": 31}, {"tolerance": 0}])
def test_rule_under_which_nothing_is_decided(wrong):
    """A rule without meaning is refused."""
    with pytest.raises(ValueError, match="wanted are"):
        Rule(**wrong)


def order_of(seed: int, rule: Rule) -> list[str]:
    """Who was called, in that order; nobody's times agree."""
    called: list[str] = []

    def contestant(name):
        def call():
            called.append(name)
            return float(2 ** len(called))

        return call

    race({name: contestant(name) for name in "abcd"}, float, rule, random.Random(seed))
    return called


def test_contestants_take_turns():
    """Each round has all of them once, in orders that differ, and that a seed repeats."""
    rule = Rule(tries=20)
    called = order_of(1, rule)
    rounds = ["".join(called[start : start + 4]) for start in range(0, len(called), 4)]
    assert len(rounds) == 20
    assert {"".join(sorted(each)) for each in rounds} == {"abcd"}
    assert len(set(rounds)) > 5
    assert {each[0] for each in rounds} == set("abcd")
    assert order_of(1, rule) == called != order_of(2, rule)


def test_all_go_on_until_the_last_agrees():
    """A contestant whose tries agree early is tried as often as the one whose tries agree late."""
    late = iter([9.0, 8.0, 7.0, 6.0, 6.0, 6.0, 1.0])
    found = race({"early": lambda: 1.0, "late": lambda: next(late)}, float, RULE, random.Random(1))
    assert found == {"early": [1.0] * 6, "late": [9.0, 8.0, 7.0, 6.0, 6.0, 6.0]}
