"""Problems about whole numbers."""

from __future__ import annotations

from rllib_lmgame.envs.synthetic.programming.families import family, ints, whole


@family("Return how many whole numbers from 1 to n (inclusive) are divisible by {K}.", n=whole(0, 500), K=range(2, 10))
def count_divisible(n: int, *, K: int) -> int:
    return n // K


@family(
    "Return the sum of all whole numbers from 1 to n (inclusive) that are divisible by {A} or by {B}.",
    n=whole(0, 200),
    A=(2, 3, 4),
    B=(5, 6, 7),
)
def sum_of_multiples(n: int, *, A: int, B: int) -> int:
    return sum(k for k in range(1, n + 1) if k % A == 0 or k % B == 0)


@family(
    "Return the digits of the non-negative number n written in base {BASE}, as a text.",
    n=whole(0, 5000),
    BASE=(2, 3, 5, 7, 8, 9),
)
def to_base(n: int, *, BASE: int) -> str:
    digits = ""
    while n or not digits:
        digits = str(n % BASE) + digits
        n //= BASE
    return digits


@family(
    "Return the value of a text of digits that is a number written in base {BASE}; the empty text is 0.",
    digits=lambda rng: "".join(rng.choice("01") for _ in range(rng.randint(0, 10))),
    BASE=(2, 3, 4, 6, 8),
)
def from_base(digits: str, *, BASE: int) -> int:
    value = 0
    for digit in digits:
        value = value * BASE + int(digit)
    return value


@family(
    "Add up the digits of the non-negative number n, each raised to the power {POWER}.",
    n=whole(0, 99999),
    POWER=(1, 2, 3, 4),
)
def digit_power_sum(n: int, *, POWER: int) -> int:
    return sum(int(digit) ** POWER for digit in str(n))


@family(
    "Replace n by the sum of its digits until it is below {LIMIT}; return it.", n=whole(0, 10**9), LIMIT=(10, 15, 20)
)
def digital_root(n: int, *, LIMIT: int) -> int:
    while n >= LIMIT:
        n = sum(int(digit) for digit in str(n))
    return n


@family("Return all prime numbers p with {LOW} < p <= n, in increasing order.", n=whole(2, 120), LOW=(1, 5, 10, 20))
def primes_up_to(n: int, *, LOW: int) -> list[int]:
    return [p for p in range(LOW + 1, n + 1) if p > 1 and all(p % d for d in range(2, int(p**0.5) + 1))]


@family(
    "Return the prime factors of n (at least 1) in increasing order, repeated as often as they divide n, leaving "
    "out the factor {SKIP}.",
    n=whole(1, 1000),
    SKIP=(2, 3, 5),
)
def prime_factors(n: int, *, SKIP: int) -> list[int]:
    factors = []
    divisor = 2
    while n > 1:
        if n % divisor == 0:
            factors.append(divisor)
            n //= divisor
        else:
            divisor += 1
    return [factor for factor in factors if factor != SKIP]


@family("Return how many divisors of n (at least 1) are greater than {LOW}.", n=whole(1, 300), LOW=(0, 1, 2, 5))
def count_divisors(n: int, *, LOW: int) -> int:
    return sum(1 for d in range(LOW + 1, n + 1) if n % d == 0)


@family(
    "The sequence begins with {A}, {B}; every further member is the sum of the two before it. Return member "
    "number n, counted from 0.",
    n=whole(0, 40),
    A=(0, 1, 2, 3),
    B=(1, 4, 5),
)
def sum_sequence(n: int, *, A: int, B: int) -> int:
    one, two = A, B
    for _ in range(n):
        one, two = two, one + two
    return one


@family(
    "Start with n (at least 1). Halve it if it is even, else replace it by {M} * n + 1. Return the number of steps "
    "until it is 1, or -1 if it is not 1 after 200 steps.",
    n=whole(1, 300),
    M=(3, 5, 7),
)
def steps_to_one(n: int, *, M: int) -> int:
    for step in range(201):
        if n == 1:
            return step
        n = n // 2 if n % 2 == 0 else M * n + 1
    return -1


@family(
    "Return the greatest common divisor of all the numbers and {START}.",
    numbers=lambda rng: [rng.choice((2, 3, 6, 12)) * number for number in ints(1, 12, 0, 4)(rng)],
    START=(12, 30, 36, 60, 84),
)
def common_divisor(numbers: list[int], *, START: int) -> int:
    result = START
    for number in numbers:
        while number:
            result, number = number, result % number
    return result


@family(
    "Return base to the power n modulo {MODULUS}; n may be very large.",
    base=whole(0, 50),
    n=whole(0, 10**6),
    MODULUS=(7, 97, 1000, 10007),
)
def power_modulo(base: int, n: int, *, MODULUS: int) -> int:
    return pow(base, n, MODULUS)


@family(
    "Return the number of ways to pay the amount n exactly with coins of 1, {A} and {B}, any number of each; the "
    "order does not matter.",
    n=whole(0, 120),
    A=(2, 3, 4),
    B=(5, 10),
)
def ways_to_pay(n: int, *, A: int, B: int) -> int:
    ways = [1] + [0] * n
    for coin in (1, A, B):
        for amount in range(coin, n + 1):
            ways[amount] += ways[amount - coin]
    return ways[n]


@family(
    "Return the smallest number of coins of 1, {A} and {B} that make up the amount n exactly.",
    n=whole(0, 100),
    A=(3, 4, 6),
    B=(7, 9, 10),
)
def fewest_coins(n: int, *, A: int, B: int) -> int:
    best = [0]
    for amount in range(1, n + 1):
        best.append(1 + min(best[amount - coin] for coin in (1, A, B) if coin <= amount))
    return best[n]


@family(
    "In how many ways can n stairs be climbed in steps of 1 or {STEP}? The order of the steps matters.",
    n=whole(0, 30),
    STEP=(2, 3, 4),
)
def climb_stairs(n: int, *, STEP: int) -> int:
    ways = [1]
    for stair in range(1, n + 1):
        ways.append(ways[stair - 1] + (ways[stair - STEP] if stair >= STEP else 0))
    return ways[n]


@family(
    "Write n (1 to 3999) as a Roman numeral, then repeat the numeral {TIMES} times.", n=whole(1, 3999), TIMES=(1, 2, 3)
)
def roman_numeral(n: int, *, TIMES: int) -> str:
    values = [1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1]
    letters = ["M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"]
    text = ""
    for i, value in enumerate(values):
        text += letters[i] * (n // value)
        n %= value
    return text * TIMES


@family(
    "Return the number of 1s among the binary digits of n, plus {EXTRA} if n is odd.",
    n=whole(0, 10**6),
    EXTRA=(0, 1, 10),
)
def count_bits(n: int, *, EXTRA: int) -> int:
    return bin(n).count("1") + (EXTRA if n % 2 else 0)


@family("Return the largest whole number r with r ** {POWER} <= n.", n=whole(0, 10**7), POWER=(2, 3, 4, 5))
def whole_root(n: int, *, POWER: int) -> int:
    root = 0
    while (root + 1) ** POWER <= n:
        root += 1
    return root


@family(
    "A clock shows hour and minute (0-23, 0-59). Return [hour, minute] after {MINUTES} minutes more.",
    hour=whole(0, 23),
    minute=whole(0, 59),
    MINUTES=(45, 90, 135, 1000),
)
def later_time(hour: int, minute: int, *, MINUTES: int) -> list[int]:
    total = (hour * 60 + minute + MINUTES) % 1440
    return [total // 60, total % 60]


@family(
    "Is the year a leap year, and is it divisible by {K}? Return True only if both hold. Leap years are "
    "divisible by 4, not by 100 unless by 400.",
    year=lambda rng: rng.choice((rng.randint(1600, 2400), 40 * rng.randint(40, 60), 100 * rng.randint(16, 24))),
    K=(1, 3, 5, 8),
)
def leap_year(year: int, *, K: int) -> bool:
    return year % K == 0 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
